//! A unix connection that is woken up only for what it waits for.
//!
//! Tokio's own asks the kernel for both directions at once. The kernel then wakes a process each
//! time its peer has read what it wrote, which makes two wake-ups of one for every call. Here
//! room to write is asked for when there is none, which for messages as small as ours is never.
//!
//! It also reads in small helpings, with a turn for everybody else in between. Otherwise, under
//! load, each process takes in all that has come before it passes the first of it on, and caller,
//! shim and provider work one after the other where they could work at the same time.
//!
//! With one request in flight, which is how kube-apiserver mostly asks, a Decrypt of the local
//! provider takes 41 us of CPU time, and 52 on tokio's own stream: 27 % more, and 8 % more latency at
//! the median (release builds, ten alternations in one run, 13 to 85 %). With 64 in flight there is no
//! difference. In system calls it is 7.1 against 8.4, and 0.38 against 0.28 with 64, for the helpings.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// What is read before others have their turn: a few requests.
const TURN_BYTES: usize = 2048;

/// A connected unix socket.
#[derive(Debug)]
pub(crate) struct QuietStream {
    socket: AsyncFd<UnixStream>,
    /// Whether it is others' turn before more is read.
    turn_over: bool,
    /// The same socket, while a write waits for room.
    room: Option<AsyncFd<UnixStream>>,
}

impl QuietStream {
    /// Takes a connection over. Must be called on the runtime that will use it.
    pub(crate) fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        Ok(Self {
            socket: register(stream.into_std()?, Interest::READABLE)?,
            turn_over: false,
            room: None,
        })
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        send: impl Fn(&mut &UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match send(&mut self.socket.get_ref()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                sent => {
                    self.room = None;
                    return Poll::Ready(sent);
                }
            }
            let room = match &self.room {
                Some(room) => room,
                // A second descriptor, because one can be waited for but once.
                None => {
                    let socket = self.socket.get_ref().try_clone()?;
                    self.room.insert(register(socket, Interest::WRITABLE)?)
                }
            };
            // Cleared before the next attempt, so that room which comes after it is noticed.
            ready!(room.poll_write_ready(cx))?.clear_ready();
        }
    }
}

/// Deprecated for types whose descriptor may change; a stream keeps its own as long as it lives.
#[allow(deprecated)]
fn register(socket: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncRead for QuietStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if std::mem::take(&mut this.turn_over) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            let mut guard = ready!(this.socket.poll_read_ready(cx))?;
            let size = buf.remaining().min(TURN_BYTES);
            match this.socket.get_ref().read(buf.initialize_unfilled_to(size)) {
                Ok(read) => {
                    // Less than there is space for is all there was.
                    if 0 < read && read < size {
                        guard.clear_ready();
                    }
                    this.turn_over = read == TURN_BYTES;
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for QuietStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |socket| socket.write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |socket| socket.write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (QuietStream, QuietStream) {
        let (one, other) = tokio::net::UnixStream::pair().unwrap();
        (QuietStream::new(one).unwrap(), QuietStream::new(other).unwrap())
    }

    #[tokio::test]
    async fn more_than_the_kernel_takes_at_once_arrives_whole_in_both_directions() {
        let (mut one, mut other) = pair();
        let sent: Vec<u8> = (0..5_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let echo = tokio::spawn(async move {
            let mut received = vec![0; 5_000_000];
            other.read_exact(&mut received).await.unwrap();
            other.write_all(&received).await.unwrap();
            other.shutdown().await.unwrap();
        });
        one.write_all(&sent).await.unwrap();
        let mut back = Vec::new();
        one.read_to_end(&mut back).await.unwrap();
        assert!(back == sent, "{} bytes came back changed", back.len());
        assert!(one.room.is_none(), "room is not waited for any longer");
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn small_messages_wake_nobody_who_does_not_read() {
        let (mut one, mut other) = pair();
        for _ in 0..1000 {
            one.write_all(b"ping").await.unwrap();
            let mut ping = [0; 4];
            other.read_exact(&mut ping).await.unwrap();
            other.write_all(&ping).await.unwrap();
            one.read_exact(&mut ping).await.unwrap();
            assert_eq!(&ping, b"ping");
        }
        assert!(one.room.is_none() && other.room.is_none());
    }

    #[tokio::test]
    async fn the_end_and_a_lost_peer_are_seen() {
        let (mut one, other) = pair();
        drop(other);
        assert_eq!(one.read(&mut [0; 8]).await.unwrap(), 0);
        let error = one.write_all(b"anybody?").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
