//! Chromium without a window, told what to do by the DevTools protocol (chromedevtools.github.io/devtools-protocol) over two pipes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::wait_for;
use crate::run;

/// An answer that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// It asks for nothing but what the test names, and draws the same on every machine.
const OPTIONS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--password-store=basic",
    "--remote-debugging-pipe",
];

/// A browser with one page. When dropped it is killed, and after a failed test its log is shown.
pub(super) struct Browser {
    child: Child,
    asks: ChildStdin,
    says: Receiver<Value>,
    /// The page's, once there is one.
    session: Option<String>,
    asked: u64,
    /// What went wrong in the page.
    errors: Vec<Value>,
    /// Its profile and its log.
    directory: TempDir,
}

impl Browser {
    pub(super) fn start() -> Browser {
        let directory = tempfile::Builder::new()
            .prefix("syngate-browser-")
            .tempdir()
            .expect("a directory");
        let log = File::create(directory.path().join("log")).expect("the log");
        // It reads from descriptor 3 and writes to 4.
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#, "sh"])
            .arg("chromium")
            .args(OPTIONS)
            .arg(format!(
                "--user-data-dir={}",
                directory.path().join("profile").display()
            ))
            .arg("about:blank")
            .env("HOME", directory.path())
            .env("XDG_CONFIG_HOME", directory.path())
            .env("XDG_CACHE_HOME", directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0);
        let mut child = command.spawn().expect("sh starts");
        let asks = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, says) = mpsc::channel();
        // Each message ends with a zero. The thread ends with the browser.
        thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("JSON");
                if tell.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser = Browser {
            child,
            asks,
            says,
            session: None,
            asked: 0,
            errors: Vec::new(),
            directory,
        };
        browser.open_page();
        browser
    }

    fn open_page(&mut self) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", attach);
        let session = attached["sessionId"].as_str().expect("a session");
        self.session = Some(session.to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// The size of what a page has for itself, in CSS pixels, and whether its user likes it `light` or `dark`.
    pub(super) fn set_screen(&mut self, width: u32, height: u32, scheme: &str) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        );
        self.call(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        );
    }

    /// Loads a page, and leaves the one that is there.
    pub(super) fn go(&mut self, url: &str) {
        self.evaluate("window.left = true");
        let gone = self.call("Page.navigate", json!({"url": url}));
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
        self.wait_until("!window.left && document.readyState === 'complete'");
    }

    /// What a JavaScript expression is, as JSON.
    pub(super) fn evaluate(&mut self, expression: &str) -> Value {
        self.try_evaluate(expression)
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Waits until a JavaScript expression is true.
    pub(super) fn wait_until(&mut self, expression: &str) {
        // Between two pages there is nothing to ask.
        wait_for(expression, || {
            (self.try_evaluate(expression).ok()? == true).then_some(())
        });
    }

    /// The whole page as a PNG file.
    pub(super) fn picture(&mut self, file: &Path) {
        let metrics = self.call("Page.getLayoutMetrics", json!({}));
        let size = &metrics["cssContentSize"];
        let clip =
            json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let taken = self.call(
            "Page.captureScreenshot",
            json!({"format": "png", "captureBeyondViewport": true, "clip": clip}),
        );
        let encoded = self.directory.path().join("picture");
        fs::write(&encoded, taken["data"].as_str().expect("base64")).expect("a file");
        run(Command::new("sh")
            .args(["-c", r#"base64 --decode "$1" >"$2""#, "sh"])
            .arg(&encoded)
            .arg(file));
    }

    /// What went wrong in the page so far: exceptions, refused loads, broken policies.
    pub(super) fn errors(&self) -> &[Value] {
        &self.errors
    }

    fn try_evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({"expression": expression, "returnByValue": true});
        let mut answer = self.try_call("Runtime.evaluate", params)?;
        if !answer["exceptionDetails"].is_null() {
            return Err(answer["exceptionDetails"].take());
        }
        Ok(answer["result"]["value"].take())
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params)
            .unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.asked += 1;
        let mut request = json!({"id": self.asked, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        let request = format!("{request}\0");
        self.asks
            .write_all(request.as_bytes())
            .expect("the browser runs");
        loop {
            let mut message = self
                .says
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|error| panic!("{method}: no answer from the browser: {error}"));
            if message["id"] == self.asked {
                return match message["error"].take() {
                    Value::Null => Ok(message["result"].take()),
                    error => Err(error),
                };
            }
            let failed = match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Log.entryAdded") => message["params"]["entry"]["level"] == "error",
                _ => false,
            };
            if failed {
                self.errors.push(message["params"].take());
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).map(Pid::from_raw);
        if let Ok(group) = group {
            let _ = killpg(group, Signal::SIGKILL);
        }
        let _ = self.child.wait();
        if thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            eprintln!("--- the browser's log ---\n{log}--- end ---");
        }
    }
}
