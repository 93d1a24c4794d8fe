//! Connections that the supervisor itself makes to a generation, to ask whether it is there.

use std::io;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use syngate_gate::Target;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// A connection of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// Connects and sends `hello`.
pub(crate) async fn greet(endpoint: &Target, hello: &[u8]) -> io::Result<Box<dyn Stream>> {
    let address = endpoint.address()?;
    let mut stream: Box<dyn Stream> = match (address.as_socket(), address.as_pathname()) {
        (Some(address), _) => Box::new(TcpStream::connect(address).await?),
        (None, Some(path)) => Box::new(UnixStream::connect(path).await?),
        (None, None) => return Err(io::ErrorKind::Unsupported.into()),
    };
    stream.write_all(hello).await?;
    Ok(stream)
}

/// The status with which a GET of `path` is answered.
pub(crate) async fn get(endpoint: &Target, hello: &[u8], path: &str) -> io::Result<u16> {
    let stream = greet(endpoint, hello).await?;
    let host = match endpoint {
        Target::Tcp(address) => address.to_string(),
        _ => "localhost".into(),
    };
    let request = hyper::Request::get(path)
        .header(hyper::header::HOST, host)
        .header(hyper::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let exchange = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(io::Error::other)?;
        Ok(answer.status().as_u16())
    };
    tokio::pin!(connection);
    tokio::select! {
        biased;
        status = exchange => status,
        // Its end before the answer is the sender's error, which says more; so this is only polled along.
        _ = async { let _ = connection.await; std::future::pending::<()>().await } => unreachable!(),
    }
}
