//! The settings that every Sidekey process has, whatever it serves.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::fields::{
    LogOptions, RawLog, RawSocket, address, any_duration, duration, endpoint, log, plain, socket,
    text,
};
use super::{Problems, read, redacted};
use crate::process::AdminOptions;
use crate::socket::SocketOptions;

/// What a process takes from its configuration, beside what it serves.
#[derive(Clone, Debug)]
pub struct ProcessOptions {
    /// The revision of what this was read from, if it carries one.
    pub revision: Option<String>,
    /// Where the admin endpoints are served.
    pub admin: AdminOptions,
    /// How sockets are made and who may open them.
    pub socket: SocketOptions,
    /// How to log.
    pub log: LogOptions,
    /// How long open requests may take after the order to stop.
    pub drain: Duration,
    /// How long clients may stay connected after SIGTERM, while all is served; zero for not at all.
    pub linger: Duration,
    /// How often files are compared, beside the kernel's notifications.
    pub file_poll: Duration,
    /// What is in use though the document says otherwise, and why.
    pub warnings: Vec<String>,
    /// The whole document, redacted, for the log.
    pub shown: Value,
}

/// As written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawOptions {
    revision: Option<Value>,
    admin: Option<String>,
    admin_socket: Option<String>,
    socket: Option<RawSocket>,
    log: Option<RawLog>,
    #[serde(deserialize_with = "text")]
    drain: Option<String>,
    #[serde(deserialize_with = "text")]
    linger: Option<String>,
    #[serde(deserialize_with = "text")]
    file_poll: Option<String>,
}

/// The names of [`RawOptions`].
const FIELDS: [&str; 8] =
    ["revision", "admin", "adminSocket", "socket", "log", "drain", "linger", "filePoll"];

impl ProcessOptions {
    /// Reads them, and gives what else is in the document.
    pub fn take(document: &Value, problems: &mut Problems) -> (Self, Value) {
        let mut rest = document.clone();
        let own: Value = match rest.as_object_mut() {
            Some(rest) => FIELDS
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), rest.remove(*name)?)))
                .collect(),
            None => Value::Object(serde_json::Map::new()),
        };
        let raw: RawOptions = read(&own, problems).unwrap_or_default();
        let admin = AdminOptions {
            address: raw.admin.as_deref().and_then(|text| address("admin", text, problems)),
            socket: raw
                .admin_socket
                .as_deref()
                .and_then(|text| endpoint("adminSocket", text, problems)),
        };
        let options = Self {
            revision: raw.revision.as_ref().map(plain),
            admin,
            socket: socket(raw.socket.unwrap_or_default(), problems),
            log: log(raw.log.unwrap_or_default(), problems),
            drain: duration("drain", raw.drain.as_deref(), 10, problems),
            linger: any_duration("linger", raw.linger.as_deref(), 0, problems),
            file_poll: duration("filePoll", raw.file_poll.as_deref(), 10, problems),
            warnings: Vec::new(),
            shown: redacted(document),
        };
        (options, rest)
    }
}
