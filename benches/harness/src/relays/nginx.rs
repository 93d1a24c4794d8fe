//! nginx, with its stream module.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::{Programs, Site};
use crate::wire::{BACKLOG, Place};

/// Where Debian's libnginx-mod-stream has it.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

pub(super) fn command(site: &Site, program: &Path) -> io::Result<Command> {
    let file = site.directory.join("nginx.conf");
    fs::write(&file, text(site))?;
    let mut command = Command::new(program);
    command
        .args(["-e", "stderr", "-p"])
        .arg(&site.directory)
        .arg("-c")
        .arg(file);
    Ok(command)
}

fn text(site: &Site) -> String {
    // Debian has the stream module as a file; elsewhere it is built in.
    let module = if Path::new(STREAM_MODULE).exists() {
        format!("load_module {STREAM_MODULE};\n")
    } else {
        String::new()
    };
    let backend = match site.backend() {
        Place::Tcp(address) => address.to_string(),
        Place::Unix(path) => format!("unix:{}", path.display()),
    };
    let (first, last) = site.ports();
    let proxy = if site.demands.proxy {
        "proxy_protocol on; "
    } else {
        ""
    };
    let (split, bind) = sources(site);
    format!(
        "{module}daemon off;\nuser root;\nworker_processes {workers};\nworker_rlimit_nofile {files};\npid nginx.pid;\n\
         error_log /dev/null crit;\nevents {{ worker_connections {files}; }}\n\
         stream {{\n{split}    server {{\n        listen {address}:{ports} backlog={BACKLOG};\n        proxy_pass {backend};\n        \
         proxy_buffer_size {buffer}; proxy_timeout 10m; {proxy}{bind}\n    }}\n}}\n",
        workers = site.demands.workers,
        files = Programs::descriptors(),
        address = site.address(),
        ports = if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        },
        buffer = site.relay.buffer,
    )
}

/// With several source addresses a client's address and port choose one, which is how nginx gets more ports.
fn sources(site: &Site) -> (String, &'static str) {
    let sources = site.sources();
    let Some((last, others)) = sources.split_last() else {
        return (String::new(), "");
    };
    let share = 100 / sources.len();
    let mut split = "    split_clients $remote_addr$remote_port $source {\n".to_owned();
    for source in others {
        split += &format!("        {share}% {source};\n");
    }
    split += &format!("        * {last};\n    }}\n");
    (split, "proxy_bind $source;")
}
