//! The KMS v2 messages and service, generated from `proto/kms_v2.proto`.
//!
//! This crate is for the wire format and nothing else: no limits, no checks, no
//! behaviour. Its one invariant is that field numbers, package and service names
//! match what kube-apiserver speaks. Messages that carry plaintext or ciphertext do
//! not derive `Debug`, so that no log line can print them by accident.

pub mod codec;

/// Package `v2` of the protocol: what kube-apiserver 1.27 and later speak.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v2 {
    include!(concat!(env!("OUT_DIR"), "/v2.rs"));

    impl std::fmt::Debug for EncryptRequest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "EncryptRequest({} bytes, uid {:?})", self.plaintext.len(), self.uid)
        }
    }

    impl std::fmt::Debug for EncryptResponse {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let (bytes, notes) = (self.ciphertext.len(), self.annotations.len());
            write!(f, "EncryptResponse({:?}, {bytes} bytes, {notes} annotations)", self.key_id)
        }
    }

    impl std::fmt::Debug for DecryptRequest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let Self { ciphertext, uid, key_id, annotations } = self;
            let (bytes, notes) = (ciphertext.len(), annotations.len());
            write!(f, "DecryptRequest({key_id:?}, {bytes} bytes, {notes} annotations, uid {uid:?})")
        }
    }

    impl std::fmt::Debug for DecryptResponse {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "DecryptResponse({} bytes)", self.plaintext.len())
        }
    }
}
