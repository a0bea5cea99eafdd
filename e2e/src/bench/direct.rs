//! The same Decrypts as a plugin makes, without the plugin: what it sent to the fake endpoint,
//! sent once more by a plain HTTP client. The difference is what the plugin costs.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::fake::Recorded;

/// Its name in the report.
pub(super) const NAME: &str = "direct HTTP call";

/// A client with as many connections as there are calls in flight.
#[derive(Clone)]
pub(super) struct Direct {
    fake: SocketAddr,
    idle: Rc<RefCell<Vec<SendRequest<Full<Bytes>>>>>,
    pool: Rc<[Replay]>,
}

/// A request to be sent again, and its answer.
struct Replay {
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    answer: Bytes,
}

impl Direct {
    /// Takes over what a plugin has sent.
    pub(super) fn new(fake: SocketAddr, records: Vec<Recorded>) -> Result<Self> {
        let pool = records.into_iter().map(Replay::new).collect::<Result<_>>()?;
        Ok(Self { fake, idle: Rc::default(), pool })
    }

    /// One Decrypt, whose answer must be the one that the plugin got.
    pub(super) async fn call(&self, number: u64) -> Result<()> {
        let index = usize::try_from(number).unwrap_or_default() % self.pool.len();
        let replay = &self.pool[index];
        // Not in one expression: the list must not be held over the await.
        let idle = self.idle.borrow_mut().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.ready().await?;
        let answer = connection.send_request(replay.request()).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        self.idle.borrow_mut().push(connection);
        ensure!(status.is_success(), "the fake endpoint answered {status} to a direct call");
        ensure!(body == replay.answer, "the fake endpoint answered a direct call otherwise");
        Ok(())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(self.fake).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl Replay {
    fn new(recorded: Recorded) -> Result<Self> {
        let mut headers = HeaderMap::new();
        for (name, value) in recorded.headers {
            headers.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
        }
        let uri = recorded.path.parse().context("the recorded path is no path")?;
        let (body, answer) = (recorded.body.into(), recorded.answer.into());
        Ok(Self { uri, headers, body, answer })
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}
