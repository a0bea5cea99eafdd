//! One kept connection: a request is written in one piece, and its answer read, by the task that
//! waits for it. No other task, no channel, and no copy stands between: that is half of what a
//! call costs.
//!
//! Answers are read strictly: a head that is not plain HTTP/1, or a body whose length is told in
//! no sound way, is an error, and ends the connection.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use sidekey_core::Secret;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use zeroize::Zeroizing;

/// No answer of KMS, STS or IMDS is longer.
const MAX_ANSWER: usize = 256 * 1024;
/// Room for the usual one.
const ROOM: usize = 1024;
/// More lines than any head has.
const MAX_LINES: usize = 100;

/// A stream, with or without TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection between two requests.
pub(crate) struct Connection(Box<dyn Stream>);

/// An answer; what may be a key in clear is wiped when it is dropped.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: Vec<u8>,
    pub(crate) body: Secret,
}

/// Why there is no answer.
pub(crate) enum Broken {
    /// The other side was gone before it said a word: it has done nothing.
    Before(io::Error),
    /// It went, or said something senseless, in the middle.
    Amid(io::Error),
}

/// How long a body is.
enum Length {
    Known(usize),
    Chunked,
    ToTheEnd,
}

/// What a head says of its body and of the connection.
struct Framing {
    length: Length,
    close: bool,
}

/// What has been read, wiped when it is moved to a larger place or dropped.
struct Buffer(Zeroizing<Vec<u8>>);

impl Connection {
    pub(crate) fn new(stream: impl Stream + 'static) -> Self {
        Self(Box::new(stream))
    }

    /// Whether the other side has not closed it, nor said anything unasked.
    pub(crate) async fn is_open(&mut self) -> bool {
        let mut byte = [0; 1];
        poll_fn(|cx| {
            let mut buffer = ReadBuf::new(&mut byte);
            let read = Pin::new(&mut *self.0).poll_read(cx, &mut buffer);
            Poll::Ready(read.is_pending())
        })
        .await
    }

    /// Writes a request, head and body, and reads the answer. The connection is given back if it
    /// can be used again.
    pub(crate) async fn exchange(
        mut self,
        request: &[u8],
    ) -> Result<(Reply, Option<Self>), Broken> {
        self.0.write_all(request).await.map_err(Broken::Before)?;
        self.0.flush().await.map_err(Broken::Before)?;
        let mut buffer = Buffer::new();
        loop {
            let end = self.head(&mut buffer).await?;
            let (status, version) = status(&buffer.0[..end]).map_err(Broken::Amid)?;
            if (100..200).contains(&status) {
                buffer.forget(end);
                continue;
            }
            let head = buffer.0[..end].to_vec();
            let Framing { length, close } = framing(&head, status).map_err(Broken::Amid)?;
            let to_the_end = matches!(length, Length::ToTheEnd);
            buffer.forget(end);
            let body = self.body(&mut buffer, length).await.map_err(Broken::Amid)?;
            let again = version == b'1' && !close && !to_the_end && buffer.0.is_empty();
            return Ok((Reply { status, head, body }, again.then_some(self)));
        }
    }

    /// Reads until the head is whole, and says where it ends.
    async fn head(&mut self, buffer: &mut Buffer) -> Result<usize, Broken> {
        loop {
            if let Some(end) = find(&buffer.0, b"\r\n\r\n") {
                return Ok(end + 4);
            }
            match self.more(buffer).await {
                Ok(true) => {}
                Ok(false) if buffer.0.is_empty() => {
                    return Err(Broken::Before(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(false) => return Err(Broken::Amid(io::ErrorKind::UnexpectedEof.into())),
                Err(error) if buffer.0.is_empty() => return Err(Broken::Before(error)),
                Err(error) => return Err(Broken::Amid(error)),
            }
        }
    }

    async fn body(&mut self, buffer: &mut Buffer, length: Length) -> io::Result<Secret> {
        match length {
            Length::Known(wanted) => self.exactly(buffer, wanted).await,
            Length::ToTheEnd => {
                while self.more(buffer).await? {}
                let all = buffer.0.len();
                Ok(buffer.take(all))
            }
            Length::Chunked => self.chunks(buffer).await,
        }
    }

    async fn chunks(&mut self, buffer: &mut Buffer) -> io::Result<Secret> {
        let mut whole = Buffer::new();
        loop {
            let line = self.line(buffer).await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| bad("chunk"))?;
            if size == 0 {
                // Lines that may follow the last chunk, up to an empty one.
                for _ in 0..MAX_LINES {
                    if self.line(buffer).await?.is_empty() {
                        let all = whole.0.len();
                        return Ok(whole.take(all));
                    }
                }
                return Err(bad("trailer"));
            }
            let chunk = self.exactly(buffer, size).await?;
            whole.push(chunk.expose())?;
            if !self.line(buffer).await?.is_empty() {
                return Err(bad("chunk"));
            }
        }
    }

    async fn exactly(&mut self, buffer: &mut Buffer, wanted: usize) -> io::Result<Secret> {
        if wanted > MAX_ANSWER {
            return Err(bad("length"));
        }
        while buffer.0.len() < wanted {
            if !self.more(buffer).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(buffer.take(wanted))
    }

    async fn line(&mut self, buffer: &mut Buffer) -> io::Result<String> {
        loop {
            if let Some(end) = find(&buffer.0, b"\r\n") {
                let line = buffer.take(end);
                buffer.forget(2);
                return line.as_text().map(str::to_owned).ok_or_else(|| bad("line"));
            }
            if !self.more(buffer).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads on; false at the end.
    async fn more(&mut self, buffer: &mut Buffer) -> io::Result<bool> {
        buffer.make_room()?;
        Ok(self.0.read_buf(&mut *buffer.0).await? > 0)
    }
}

impl Reply {
    /// The value of a header, if it is there.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All headers that are text.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |bytes| std::str::from_utf8(bytes).ok();
        lines(&self.head).filter_map(move |(name, value)| Some((text(name)?, text(value)?)))
    }
}

impl Buffer {
    fn new() -> Self {
        Self(Zeroizing::new(Vec::with_capacity(ROOM)))
    }

    fn make_room(&mut self) -> io::Result<()> {
        let (len, capacity) = (self.0.len(), self.0.capacity());
        if len < capacity {
            return Ok(());
        }
        if len >= MAX_ANSWER {
            return Err(bad("length"));
        }
        let mut larger = Zeroizing::new(Vec::with_capacity(capacity * 4));
        larger.extend_from_slice(&self.0);
        self.0 = larger;
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        while self.0.capacity() - self.0.len() < bytes.len() {
            if self.0.len() + bytes.len() > MAX_ANSWER {
                return Err(bad("length"));
            }
            let mut larger = Zeroizing::new(Vec::with_capacity(self.0.capacity() * 4));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn take(&mut self, len: usize) -> Secret {
        let taken = Secret::new(self.0[..len].to_vec());
        self.forget(len);
        taken
    }

    fn forget(&mut self, len: usize) {
        let rest = self.0.len() - len;
        self.0.copy_within(len.., 0);
        self.0[rest..].fill(0);
        self.0.truncate(rest);
    }
}

/// The status, and the last digit of the version.
fn status(head: &[u8]) -> io::Result<(u16, u8)> {
    let line = head.strip_prefix(b"HTTP/1.").ok_or_else(|| bad("version"))?;
    match line {
        [version @ (b'0' | b'1'), b' ', a, b, c, b' ' | b'\r', ..]
            if [a, b, c].iter().all(|digit| digit.is_ascii_digit()) =>
        {
            let digit = |byte: &u8| u16::from(byte - b'0');
            Ok((digit(a) * 100 + digit(b) * 10 + digit(c), *version))
        }
        _ => Err(bad("status")),
    }
}

/// Looks once at each header: there is a head in every call.
fn framing(head: &[u8], status: u16) -> io::Result<Framing> {
    let (mut length, mut chunked, mut close) = (None, false, false);
    for (index, (name, value)) in lines(head).enumerate() {
        if index == MAX_LINES {
            return Err(bad("head"));
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let told = decimal(value).ok_or_else(|| bad("content-length"))?;
            if length.replace(told).is_some_and(|before| before != told) {
                return Err(bad("content-length"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(bad("transfer-encoding"));
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"connection") {
            let mut parts = value.split(|byte| *byte == b',');
            close |= parts.any(|part| part.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
    }
    let length = match (chunked, length) {
        _ if matches!(status, 204 | 304) => Length::Known(0),
        (true, _) => Length::Chunked,
        (false, Some(length)) => Length::Known(length),
        (false, None) => Length::ToTheEnd,
    };
    Ok(Framing { length, close })
}

fn decimal(digits: &[u8]) -> Option<usize> {
    let sound = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| sound)?.parse().ok()
}

/// Names and values, without the status line; what is neither is passed over.
fn lines(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    lines.filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer has no sound {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of an answer that comes in pieces of `size` bytes.
    async fn read(answer: &[u8], size: usize) -> Result<(Reply, bool), ()> {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let answer = answer.to_vec();
        let writing = tokio::spawn(async move {
            let mut request = [0; 4];
            far.read_exact(&mut request).await.unwrap();
            for piece in answer.chunks(size) {
                far.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let answer = Connection::new(near).exchange(b"GET\n").await;
        writing.await.unwrap();
        answer.map(|(reply, again)| (reply, again.is_some())).map_err(|_| ())
    }

    #[tokio::test]
    async fn answers_are_read_in_whatever_pieces_they_come() {
        let known = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello";
        let chunked = b"HTTP/1.1 400 Bad\r\ntransfer-encoding: chunked\r\n\r\n3;x\r\nhel\r\n2\r\nlo\r\n0\r\nt: u\r\n\r\n";
        let early =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        for size in [1, 2, 7, 1000] {
            for (answer, status) in [(&known[..], 200), (&chunked[..], 400), (&early[..], 200)] {
                let (reply, again) = read(answer, size).await.unwrap();
                assert_eq!((reply.status, reply.body.expose()), (status, &b"hello"[..]));
                assert!(again);
            }
        }
        let (reply, _) = read(known, 1000).await.unwrap();
        assert_eq!(reply.header("x-a"), Some("b"));
    }

    #[tokio::test]
    async fn a_connection_that_ends_or_says_too_much_is_not_used_again() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx"[..],
            b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
            b"HTTP/1.1 200 OK\r\n\r\nto the end",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n",
        ] {
            assert!(!read(answer, 1000).await.unwrap().1);
        }
    }

    #[tokio::test]
    async fn senseless_answers_are_refused() {
        for answer in [
            &b""[..],
            b"HTTP/1.1 200",
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/2 200 OK\r\n\r\n",
            b"HTTP/1.1 20x OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nz\r\n",
        ] {
            assert!(read(answer, 1000).await.is_err(), "{}", String::from_utf8_lossy(answer));
        }
    }
}
