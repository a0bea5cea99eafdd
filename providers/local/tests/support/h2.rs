//! HTTP/2 written by hand, for what no well-behaved client sends.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// One frame of the other side.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) body: Vec<u8>,
    flags: u8,
}

/// A connection.
pub(crate) struct Raw {
    stream: UnixStream,
    /// What the other side lets us send: on the connection, on each new stream, on one stream.
    connection: i64,
    initial: i64,
    streams: BTreeMap<u32, i64>,
}

impl Raw {
    pub(crate) fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut raw =
            Self { stream, connection: 65_535, initial: 65_535, streams: BTreeMap::new() };
        raw.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        raw.send(SETTINGS, 0, 0, &[]);
        raw
    }

    /// Opens a request.
    pub(crate) fn request(&mut self, stream: u32, method: &str) {
        let path = format!("/v2.KeyManagementService/{method}");
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", &path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let mut block = Vec::new();
        for (name, value) in headers {
            // Literal, never indexed, no Huffman.
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).unwrap());
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.send(HEADERS, END_HEADERS, stream, &block);
    }

    /// Sends a part of the body, and the end of it if it is the last.
    pub(crate) fn body(&mut self, stream: u32, part: &[u8], last: bool) {
        self.connection -= part.len() as i64;
        *self.streams.entry(stream).or_default() -= part.len() as i64;
        self.send(DATA, if last { END_STREAM } else { 0 }, stream, part);
    }

    /// How much of a body may be sent now.
    pub(crate) fn room(&self, stream: u32) -> usize {
        let used = self.streams.get(&stream).copied().unwrap_or_default();
        usize::try_from(self.connection.min(self.initial + used).min(16_384)).unwrap_or(0)
    }

    /// Waits until everything sent so far has been read, and gives what came meanwhile. `None` if
    /// the other side has closed the connection.
    pub(crate) fn settle(&mut self) -> Option<Vec<Frame>> {
        self.send(PING, 0, 0, b"settled?");
        let mut frames = Vec::new();
        loop {
            let frame = self.next()?;
            if frame.kind == PING && frame.flags == ACK {
                return Some(frames);
            }
            frames.push(frame);
        }
    }

    /// The next frame; what it says of settings and windows is taken note of.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |n, b| n << 8 | u32::from(*b));
        let mut body = vec![0; number(&head[..3]) as usize];
        self.stream.read_exact(&mut body).ok()?;
        let stream = number(&head[5..]);
        let frame = Frame { kind: head[3], flags: head[4], stream, body };
        match (frame.kind, frame.flags & ACK) {
            (SETTINGS, 0) => {
                for setting in frame.body.chunks_exact(6).filter(|s| s[..2] == [0, 4]) {
                    self.initial = number(&setting[2..]).into();
                }
                self.send(SETTINGS, ACK, 0, &[]);
            }
            (PING, 0) => self.send(PING, ACK, 0, &frame.body),
            (WINDOW_UPDATE, _) if stream == 0 => self.connection += i64::from(number(&frame.body)),
            (WINDOW_UPDATE, _) => {
                *self.streams.entry(stream).or_default() += i64::from(number(&frame.body));
            }
            _ => {}
        }
        Some(frame)
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, body: &[u8]) {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let mut frame = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        frame.extend_from_slice(body);
        // The other side may have hung up on us: what it sent before tells why.
        let _ = self.stream.write_all(&frame);
    }
}

/// A gRPC message that says to be `length` bytes long, with what there is of it.
pub(crate) fn message(length: usize, part: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).unwrap().to_be_bytes();
    [&[0][..], &length, part].concat()
}
