//! How things are written.

use std::fmt;

use serde::Serialize;

use super::{CipherKind, FileSource, ObjectKey, Role, Writer};

impl Role {
    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl CipherKind {
    /// As EncryptionConfiguration names it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Aescbc => "aescbc",
            Self::Aesgcm => "aesgcm",
            Self::Secretbox => "secretbox",
        }
    }
}

impl Serialize for Writer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Keys => "keys",
            Self::Cipher(name) => name,
            Self::Identity => "identity",
        })
    }
}

impl fmt::Display for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(ObjectKey { name, key }) => write!(f, "Secret {name}, key {key}"),
            Self::ConfigMap(ObjectKey { name, key }) => write!(f, "ConfigMap {name}, key {key}"),
            Self::File(path) => write!(f, "file {}", path.display()),
        }
    }
}
