//! The question that kubelet asks the container runtime first.
//!
//! containerd shows its part for Kubernetes as loaded while that part still refuses every call, and
//! a kubelet that starts in between ends.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use hyper::Uri;
use hyper::http::uri::PathAndQuery;
use sidekey_core::client::connection;
use sidekey_core::proto::codec::KmsCodec;
use tokio::net::UnixStream;
use tonic::Request;
use tonic::client::Grpc;

const STATUS: &str = "/runtime.v1.RuntimeService/Status";

/// More than the answer, which nobody looks at.
const WINDOW: u32 = 1 << 20;

/// Asks for the runtime's status; an error unless it is given.
pub(super) async fn status(socket: &Path) -> Result<()> {
    let connect = || format!("cannot connect to {}", socket.display());
    let stream = UnixStream::connect(socket).await.with_context(connect)?;
    let connection = connection(stream, WINDOW).await.with_context(connect)?;
    let mut client = Grpc::with_origin(connection, Uri::from_static("http://localhost"));
    client.ready().await.map_err(|error| anyhow!("{}: {error}", socket.display()))?;
    let path = PathAndQuery::from_static(STATUS);
    client.unary(Request::new(()), path, KmsCodec::<(), ()>::default()).await.context(STATUS)?;
    Ok(())
}
