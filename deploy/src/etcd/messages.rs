//! The few messages of etcd's v3 API that are needed, as `rpc.proto` and `kv.proto` number them.

use bytes::Bytes;
use prost::Message;

/// `etcdserverpb.ResponseHeader`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Header {
    /// The cluster that answered.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// The member of it.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The store's revision when the request was applied.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// `etcdserverpb.RangeRequest`: linearizable, in the order of keys.
#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The key behind the last one; empty asks for the first one alone.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// At most so many.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As it was at that revision; 0 is now.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Without values.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    /// Without keys and values.
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

/// `etcdserverpb.RangeResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// What was found.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether there is more in the range.
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// How many there are in the range.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

/// `mvccpb.KeyValue`, also what a snapshot holds.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
}

/// `etcdserverpb.AuthenticateRequest`.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateRequest {
    /// The user.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its password.
    #[prost(string, tag = "2")]
    pub password: String,
}

/// `etcdserverpb.AuthenticateResponse`.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateResponse {
    /// What later requests show.
    #[prost(string, tag = "2")]
    pub token: String,
}

// Neither password nor token may be printed.
impl std::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateResponse").finish_non_exhaustive()
    }
}
