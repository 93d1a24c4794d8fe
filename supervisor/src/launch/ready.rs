//! When a started generation is ready, and in which of its ways it listens.

use std::time::Duration;

use syngate_gate::Target;
use tokio::time::{Instant, sleep, timeout};

use super::Way;
use crate::dial;
use crate::readiness::{NotReady, Proof};

/// How soon the places of a server are tried again, to see in which it listens.
const AGAIN: Duration = Duration::from_millis(25);

/// How a started generation proves that it is ready.
pub(crate) struct Readiness {
    /// One that doesn't depend on where it listens.
    pub(super) proof: Option<Proof>,
    /// A GET of this path.
    pub(super) path: Option<String>,
    /// A connect.
    pub(super) connects: bool,
    pub(super) ways: Vec<Way>,
    pub(super) hello: Vec<u8>,
}

impl Readiness {
    /// Waits for the proof, and says in which of its ways the generation listens.
    pub(crate) async fn wait(self, within: Duration) -> Result<usize, NotReady> {
        let Readiness {
            proof,
            path,
            connects,
            ways,
            hello,
        } = self;
        let end = Instant::now() + within;
        let left = || end.saturating_duration_since(Instant::now());
        if let Some(proof) = proof {
            proof.wait(within).await?;
        }
        let way = match ways.as_slice() {
            [_] => 0,
            _ => listens(&ways, &hello, within, left()).await?,
        };
        let first = ways[way].first().map(|(_, address)| address.clone());
        if connects {
            let own = |place: &&(_, Target)| !matches!(place.1, Target::Nameless(_));
            for (listener, address) in ways[way].iter().filter(own) {
                let connect = Proof::Connect {
                    endpoints: vec![address.clone()],
                    hello: hello.clone(),
                };
                let proof = connect.wait(left()).await;
                proof.map_err(|error| for_listener(error, listener.as_deref()))?;
            }
        } else if let (Some(path), Some(endpoint)) = (path, first) {
            Proof::Http {
                endpoint,
                hello,
                path,
            }
            .wait(left())
            .await?;
        }
        Ok(way)
    }
}

/// With a word on how the command learns of its place, where there are several.
fn for_listener(error: NotReady, listener: Option<&str>) -> NotReady {
    match (error, listener) {
        (NotReady::InTime { within, why }, Some(name)) => NotReady::InTime {
            within,
            why: format!(
                "nobody listens for listener {name}: {why}; let COMMAND name {{port_{name}}}, {{socket_{name}}} or {{fd_{name}}}"
            ),
        },
        (error, _) => error,
    }
}

/// The way in which all places accept.
async fn listens(
    ways: &[Way],
    hello: &[u8],
    within: Duration,
    left: Duration,
) -> Result<usize, NotReady> {
    let look = async {
        loop {
            'ways: for (index, way) in ways.iter().enumerate() {
                for (_, address) in way {
                    if dial::greet(address, hello).await.is_err() {
                        continue 'ways;
                    }
                }
                return index;
            }
            sleep(AGAIN).await;
        }
    };
    let places: Vec<_> = ways
        .iter()
        .flatten()
        .map(|(_, address)| address.to_string())
        .collect();
    let why = format!(
        "nobody listens on {}: let COMMAND name {{addr}} and {{port}}, {{socket}} or {{fd}}, or say with --backend where it listens",
        places.join(" or ")
    );
    timeout(left, look)
        .await
        .map_err(|_| NotReady::InTime { within, why })
}
