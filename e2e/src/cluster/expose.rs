//! A backend of this host's loopback, made reachable from pods.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A forwarder of TCP connections, closed when this is dropped.
#[derive(Debug)]
pub struct Exposed {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Exposed {
    pub(super) async fn start(at: (Ipv4Addr, u16), to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(at).await.context("cannot listen for pods")?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                tokio::spawn(async move {
                    // A backend that is down is seen as a closed connection.
                    if let Ok(mut far) = TcpStream::connect(to).await {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Ok(Self { address, task })
    }

    /// Where pods find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        self.task.abort();
    }
}
