//! HTTP/2 written by hand, for what no well-behaved client sends. The tests of shim and proxy use it
//! too.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
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

/// What it is spoken over.
pub(crate) trait Wire: Read + Write + Send {}

impl<T: Read + Write + Send> Wire for T {}

/// A connection.
pub(crate) struct Raw {
    stream: Box<dyn Wire>,
    /// Whether the other side has hung up, or has not read for so long that a write was given up.
    closed: bool,
    /// What the other side lets us send: on the connection, on each new stream, on one stream.
    connection: i64,
    initial: i64,
    streams: BTreeMap<u32, i64>,
}

impl Raw {
    pub(crate) fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self::over(stream)
    }

    /// One that gives up soon where nobody reads what it writes.
    pub(crate) fn hasty(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_write_timeout(Some(HASTE)).unwrap();
        Self::over(stream)
    }

    /// Opens HTTP/2 on a connection.
    pub(crate) fn over(stream: impl Wire + 'static) -> Self {
        let stream = Box::new(stream);
        let (connection, initial, streams) = (65_535, 65_535, BTreeMap::new());
        let mut raw = Self { stream, closed: false, connection, initial, streams };
        // It may be closed already, to make room.
        raw.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        raw.send(SETTINGS, 0, 0, &[]);
        raw
    }

    fn write(&mut self, bytes: &[u8]) {
        self.closed |= self.stream.write_all(bytes).and_then(|()| self.stream.flush()).is_err();
    }

    /// Opens a request.
    pub(crate) fn request(&mut self, stream: u32, method: &str) {
        self.send(HEADERS, END_HEADERS, stream, &headers(method));
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
        if !self.closed {
            self.write(&frame(kind, flags, stream, body));
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

fn headers(method: &str) -> Vec<u8> {
    // Literal, never indexed, no Huffman.
    literal(method, 0)
}

/// Headers that begin with `form`: whether they are to be indexed.
fn literal(method: &str, form: u8) -> Vec<u8> {
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
        block.push(form);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// Done by a client that opens connections by what it is given, and keeps them to the end.
pub(crate) type Abuse = (&'static str, fn(&dyn Fn() -> Raw) -> Vec<Raw>);

/// All that a client may do to a server.
pub(crate) const ABUSES: [Abuse; 9] = [
    ("unfinished requests", unfinished),
    ("unfinished requests of a few bytes", short),
    ("answers that nobody reads", unread),
    ("answers for which there is no window", windowless),
    ("requests given up", given_up),
    ("rapid reset", rapid_reset),
    ("CONTINUATION flood", continuation_flood),
    ("SETTINGS and PING flood", control_flood),
    ("many connections", many_connections),
];

/// How long a client waits that means no good.
pub(crate) const HASTE: Duration = Duration::from_millis(100);
const CROWD: usize = 200;
const STREAMS: u32 = 120;

/// The numbers of a client's streams.
fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|n| 2 * n + 1)
}

/// As many long requests as there may be, none of them whole.
fn unfinished(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    let part = message(90_000, &[0; 16_000]);
    let mut crowd: Vec<Raw> = (0..CROWD).map(|_| open()).collect();
    for raw in &mut crowd {
        for stream in streams(STREAMS) {
            raw.request(stream, "Encrypt");
            raw.body(stream, &part[..500], false);
        }
    }
    for round in 0..10 {
        for raw in &mut crowd {
            // What was sent is taken in, and there is room for more, unless it was closed.
            if raw.closed || raw.settle().is_none() {
                raw.closed = true;
                continue;
            }
            for stream in streams(STREAMS).filter(|stream| (*stream / 2) % 10 == round) {
                let size = raw.room(stream).min(part.len());
                raw.body(stream, &part[..size], false);
            }
        }
    }
    crowd
}

/// As many requests as there may be, of 15 bytes each, all at once: their headers are those of the
/// first, by number.
fn short(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    let mut crowd: Vec<Raw> = (0..CROWD).map(|_| open()).collect();
    let same: Vec<u8> = (0..6).map(|n| 0x80 | (67 - n)).collect();
    let rest = streams(STREAMS).skip(1).map(|stream| frame(HEADERS, END_HEADERS, stream, &same));
    let rest: Vec<u8> = rest.flatten().collect();
    for raw in &mut crowd {
        raw.send(HEADERS, END_HEADERS, 1, &literal("Encrypt", 0x40));
    }
    for raw in crowd.iter_mut().filter(|raw| !raw.closed) {
        raw.write(&rest);
    }
    crowd
}

fn unread(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    ask(open, 0)
}

fn windowless(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    let window_of_none = [0, 4, 0, 0, 0, 0];
    ask(
        &|| {
            let mut raw = open();
            raw.send(SETTINGS, 0, 0, &window_of_none);
            raw
        },
        // What was asked before the settings were seen is answered at once.
        1,
    )
}

/// Whole requests, whose answers are never read. They are answered from memory: it is not the KMS
/// that is to be kept busy.
fn ask(open: &dyn Fn() -> Raw, settled: usize) -> Vec<Raw> {
    let whole = message(0, &[]);
    let mut crowd: Vec<Raw> = (0..CROWD).map(|_| open()).collect();
    for raw in &mut crowd {
        for _ in 0..settled {
            raw.settle();
        }
        for stream in streams(2000) {
            raw.request(stream, "Status");
            raw.body(stream, &whole, true);
            // With no window at all there are no more answers than streams at a time.
            if raw.closed || (settled > 0 && stream > 2 * STREAMS) {
                break;
            }
        }
    }
    crowd
}

/// Whole requests that somebody must work on, by clients that leave at once, again and again.
fn given_up(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    let whole = message(3, &[0x0a, 1, b'x']);
    for _ in 0..CROWD {
        let mut raw = open();
        raw.settle();
        for stream in streams(STREAMS) {
            raw.request(stream, "Encrypt");
            raw.body(stream, &whole, true);
        }
    }
    Vec::new()
}

fn rapid_reset(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    let mut crowd: Vec<Raw> = (0..20).map(|_| open()).collect();
    for raw in &mut crowd {
        for stream in streams(20_000) {
            raw.request(stream, "Decrypt");
            raw.send(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
            if raw.closed {
                break;
            }
        }
    }
    crowd
}

/// Headers without an end.
fn continuation_flood(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    let mut crowd: Vec<Raw> = (0..20).map(|_| open()).collect();
    for raw in &mut crowd {
        raw.send(HEADERS, 0, 1, &headers("Decrypt"));
        // A header of 4 KiB, again and again.
        let header = [&[0, 1, b'x', 0x7f, 0x81, 0x1f][..], &[b'x'; 4096]].concat();
        for _ in 0..2000 {
            raw.send(CONTINUATION, 0, 1, &header);
            if raw.closed {
                break;
            }
        }
    }
    crowd
}

/// All of which must be acknowledged, to one who does not read.
fn control_flood(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    let mut crowd: Vec<Raw> = (0..20).map(|_| open()).collect();
    for raw in &mut crowd {
        for _ in 0..50_000 {
            raw.send(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
            raw.send(PING, 0, 0, b"flooding");
            if raw.closed {
                break;
            }
        }
    }
    crowd
}

fn many_connections(open: &dyn Fn() -> Raw) -> Vec<Raw> {
    (0..600).map(|_| open()).collect()
}

/// The most memory that a process has had so far, in KiB.
pub(crate) fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// What no abuse may take a process to, in KiB.
pub(crate) const MOST: u64 = 64 * 1024;

/// A gRPC message that says to be `length` bytes long, with what there is of it.
pub(crate) fn message(length: usize, part: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).unwrap().to_be_bytes();
    [&[0][..], &length, part].concat()
}
