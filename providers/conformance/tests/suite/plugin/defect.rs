//! The promises that a plugin can be told to break.

/// Declares the defects with the one check that must catch each of them.
macro_rules! defects {
    ($($(#[doc = $text:literal])+ $name:ident => $check:literal,)+) => {
        /// One broken promise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Defect {
            $($(#[doc = $text])+ $name,)+
        }

        impl Defect {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            /// The check that must catch it.
            pub(crate) fn caught_by(self) -> &'static str {
                match self {
                    $(Self::$name => $check,)+
                }
            }
        }
    };
}

defects! {
    /// Status is a gRPC error.
    StatusFails => "status.answers",
    /// Speaks of version v1beta1.
    OldVersion => "status.version",
    /// Says v2beta1 now and then.
    WaveringVersion => "status.version-constant",
    /// Says "OK" for "ok".
    LoudHealthz => "status.healthz",
    /// A key_id of more than 1024 bytes.
    LongKeyId => "status.key-id",
    /// Another key_id now and then.
    FlappingKeyId => "status.key-id-stable",
    /// Status gets slow on a busy connection.
    SlowStatus => "status.latency",
    /// Each Status calls the KMS.
    CostlyStatus => "status.backend-calls",
    /// Encrypt reports an alias until the first rotation.
    AliasKeyId => "encrypt.key-id",
    /// Takes 32 zeros for nothing.
    ZerosAreNothing => "encrypt.round-trip",
    /// Ciphertexts of more than 1024 bytes.
    LongCiphertext => "encrypt.ciphertext-size",
    /// Leaves the plaintext in an annotation.
    LeakyAnnotation => "encrypt.confidential",
    /// Leaves the plaintext in an annotation, as base64.
    LeakyBase64 => "encrypt.confidential",
    /// An annotation key without a domain.
    PlainAnnotationKey => "encrypt.annotation-keys",
    /// Annotations of 33 KiB.
    LargeAnnotation => "encrypt.annotation-size",
    /// The same nonce for the same plaintext.
    RepeatedNonce => "encrypt.fresh",
    /// Cuts 1024 bytes to 512.
    CutsPlaintext => "encrypt.sizes",
    /// An empty plaintext is an internal error.
    EmptyIsInternal => "encrypt.empty",
    /// A ciphertext can be used seventy times.
    WearsOut => "decrypt.repeat",
    /// A ciphertext belongs to the connection that made it.
    BoundToConnection => "decrypt.second-connection",
    /// A ciphertext ends with the connection that made it.
    EndsWithConnection => "decrypt.reconnect",
    /// Under load one answer goes to all who ask.
    MixesAnswers => "decrypt.concurrent-distinct",
    /// Refuses a ciphertext that many ask for at once.
    RefusesHerd => "decrypt.concurrent-equal",
    /// The last byte of the ciphertext is not authenticated.
    MalleableCiphertext => "mutate.ciphertext",
    /// A byte more is taken for a flag.
    ReadsPastTheEnd => "mutate.ciphertext-length",
    /// Compares key_ids without their last character.
    SloppyKeyId => "mutate.key-id",
    /// An annotation goes into the plaintext without authentication.
    TrustsAnnotation => "mutate.annotation-value",
    /// A missing annotation is taken for another one.
    DefaultsAnnotation => "mutate.annotation-removed",
    /// An empty ciphertext decrypts to nothing.
    EmptyCiphertext => "hostile.ciphertext-empty",
    /// A short ciphertext decrypts to nothing.
    ShortCiphertext => "hostile.ciphertext-short",
    /// A long ciphertext is the end.
    LongCiphertextCrash => "hostile.ciphertext-long",
    /// Random bytes decrypt to something.
    Garbage => "hostile.ciphertext-garbage",
    /// No key_id means the current one.
    EmptyKeyId => "hostile.key-id-empty",
    /// A long key_id means the current one.
    LongKeyIdAccepted => "hostile.key-id-long",
    /// A key_id in a strange form means the current one.
    UnknownKeyId => "hostile.key-id-unknown",
    /// A prefix with nothing behind it is the end.
    BarePrefixCrash => "hostile.key-id-prefixed",
    /// An empty annotation key is the end.
    EmptyAnnotationKeyCrash => "hostile.annotation-keys",
    /// No answer to very many annotations.
    ManyAnnotationsHang => "hostile.annotation-size",
    /// After a long annotation Status fails for a moment.
    LongAnnotationStumble => "hostile.annotation-size",
    /// Broken protobuf is a success.
    BrokenProtobuf => "wire.protobuf",
    /// More than 4 MiB is a success.
    Oversize => "wire.oversize",
    /// Each method is a success.
    AnyMethod => "wire.unknown-method",
    /// Each service is a success.
    AnyService => "wire.unknown-service",
    /// Takes the next connection when the last one has spoken.
    WaitsForTheSilent => "abuse.silent-connection",
    /// Reads first frames one after the other.
    WaitsForTheFrame => "abuse.half-frame",
    /// Anything but HTTP/2 is the end.
    GarbageCrash => "abuse.garbage-bytes",
    /// Has twenty-four connections to lose.
    LosesConnections => "abuse.connection-churn",
    /// A deadline of 1 ns is the end.
    TinyDeadlineCrash => "abuse.deadlines",
    /// A cancelled call is the end.
    CancelCrash => "abuse.cancelled-calls",
    /// A socket for everybody.
    OpenSocket => "socket.mode",
    /// Stumbles over the socket that kill -9 leaves.
    StaleSocket => "restart.comes-back",
    /// Forgets the key at a restart.
    ForgetsKey => "restart.decrypt",
    /// Another key_id after a restart.
    RestartMovesKeyId => "restart.key-id",
    /// Another version after a restart.
    RestartMovesVersion => "restart.version",
    /// Does not notice a rotation.
    IgnoresRotation => "rotation.key-id-moves",
    /// Announces the new key and encrypts with the old one.
    EncryptsWithOldKey => "rotation.encrypt",
    /// Drops the old key at a rotation; only what it has seen before still decrypts.
    DropsOldKey => "rotation.old-decrypts",
    /// The first Status after a rotation fails.
    StumblesOverRotation => "rotation.seamless",
    /// Loads only the newest key at a start.
    LoadsNewestOnly => "rotation.restart",
    /// The third key gets the name of the first.
    ReusesKeyId => "rotation.never-back",
}
