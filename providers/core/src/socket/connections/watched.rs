//! Whether a client reads its answers, and when it is its turn to be read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::SlotState;

/// What is read of a connection before others have their turn: requests are counted when their tasks
/// run, so that what all connections have read in between is bounded by nothing else.
const TURN: usize = 8 * 1024;

/// A connection that knows whether its client reads.
pub(crate) struct WatchedStream<T> {
    io: T,
    /// What was read in this turn.
    taken: usize,
    place: Arc<SlotState>,
}

impl<T> WatchedStream<T> {
    pub(super) fn new(io: T, place: Arc<SlotState>) -> Self {
        Self { io, taken: 0, place }
    }

    fn written<R>(&self, written: Poll<R>) -> Poll<R> {
        let blocked = written.is_pending();
        if self.place.blocked.load(Relaxed) != blocked {
            self.place.blocked.store(blocked, Relaxed);
            self.place.unblocked.notify_waiters();
        }
        written
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WatchedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // What those hold who were told to go is not free before they are gone.
        if self.taken >= TURN || self.place.table.going.load(Relaxed) > 0 {
            self.taken = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.taken += buf.filled().len() - before;
        if read.is_pending() {
            self.taken = 0;
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WatchedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
