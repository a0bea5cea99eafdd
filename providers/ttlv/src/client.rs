//! The operations, on whichever of several servers answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sidekey_core::{Error, Kind, Secret};
use sidekey_rest::servers::Turns;
use sidekey_rest::stream::Dialer;
use sidekey_rest::{Address, Trust};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use crate::codec::{Item, Writer};
use crate::connection::Server;
use crate::protocol::{
    Failure, GENERAL_FAILURE, ILLEGAL_OPERATION, INVALID_FIELD, INVALID_MESSAGE, Operation,
    PERMISSION_DENIED, Version, payload, request, tag,
};

/// Of AES-GCM.
pub const TAG_LEN: usize = 16;

/// The port of KMIP.
const PORT: u16 = 5696;
/// For a connection, all addresses of the host together.
const CONNECT: Duration = Duration::from_millis(1500);
/// Longest wait for one server while there is another to ask.
const SHARE: Duration = Duration::from_secs(2);
/// Calls at a time, and so connections to one server.
const CALLS: usize = 8;
/// More keys than anybody looks at who has found too many.
const MAX_FOUND: i32 = 8;
/// What a request has beside data and names.
const FIELDS: usize = 1024;

const AES: u32 = 3;
const NO_PADDING: u32 = 1;
const SYMMETRIC_KEY: u32 = 2;
const ACTIVE: u32 = 2;
const PLAIN_TEXT_NAME: u32 = 1;
const ENCRYPT_AND_DECRYPT: i32 = 0x4 | 0x8;
/// Of KMIP, by number.
const STATES: [&str; 6] = [
    "not yet active",
    "active",
    "deactivated",
    "compromised",
    "destroyed",
    "destroyed and compromised",
];

/// A KMS that is served by one server, or by several of one cluster.
pub struct Client {
    dialer: Dialer,
    servers: Vec<Server>,
    /// The one that answered last.
    preferred: AtomicUsize,
    turns: Semaphore,
}

/// How data is encrypted; there is never any padding.
#[derive(Clone, Copy, Debug)]
pub struct Cipher<'a> {
    /// The block cipher mode, with AES.
    pub mode: Mode,
    /// IV, counter or nonce, as long as the mode has it.
    pub iv: &'a [u8],
    /// Additional authenticated data, of AES-GCM alone.
    pub aad: &'a [u8],
}

/// A block cipher mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Cipher block chaining, of whole blocks; without integrity.
    Cbc = 1,
    /// Counter; without integrity.
    Ctr = 6,
    /// Galois/counter; the tag stands behind the ciphertext.
    Gcm = 9,
}

/// Where a server is: `host[:port]`; the error says what would be right.
pub fn address(text: &str) -> Result<Address, String> {
    let form = || format!("{text:?} is no address of a KMIP server: write host[:port]");
    if text.contains("://") {
        return Err(form());
    }
    let ported = text.rsplit_once(':').is_some_and(|(host, port)| {
        (!host.contains(':') || host.ends_with(']')) && !port.is_empty() && !port.contains(']')
    });
    let port = if ported { String::new() } else { format!(":{PORT}") };
    Address::parse(&format!("https://{text}{port}")).map_err(|_| form())
}

impl Client {
    /// A client that has not connected to anybody yet.
    pub fn new(trust: &Trust, addresses: impl IntoIterator<Item = Address>) -> Self {
        let servers = addresses.into_iter().map(Server::new).collect();
        let (dialer, preferred) = (Dialer::new(trust, CONNECT), AtomicUsize::new(0));
        Self { dialer, servers, preferred, turns: Semaphore::new(CALLS) }
    }

    /// The version that is spoken with the server that answered last.
    pub fn version(&self) -> Option<Version> {
        self.servers.get(self.preferred.load(Ordering::Relaxed))?.version()
    }

    /// The unique identifiers of the active symmetric keys of this name: some of them, if there are
    /// more than anybody wants.
    pub async fn locate(&self, name: &str, deadline: Instant) -> Result<Vec<String>, Error> {
        let fill = |_, payload: &mut Writer| {
            payload.integer(tag::MAXIMUM_ITEMS, MAX_FOUND);
            attribute(payload, "Name", |payload| {
                payload.structure(tag::ATTRIBUTE_VALUE, |value| {
                    value.text(tag::NAME_VALUE, name);
                    value.enumeration(tag::NAME_TYPE, PLAIN_TEXT_NAME);
                });
            });
            for (attribute_name, value) in [("State", ACTIVE), ("Object Type", SYMMETRIC_KEY)] {
                let value = |item: &mut Writer| item.enumeration(tag::ATTRIBUTE_VALUE, value);
                attribute(payload, attribute_name, value);
            }
            Ok(())
        };
        let answer = self.ask(Operation::Locate, name.len(), &fill, deadline).await?;
        let found = self.read(&answer, Operation::Locate, name)?;
        let found = found.items().filter(|item| item.tag == tag::UNIQUE_IDENTIFIER);
        let found: Option<Vec<_>> = found.map(|item| item.text().map(str::to_owned)).collect();
        found.ok_or_else(|| Failure::odd(Operation::Locate, "an identifier is no text").into())
    }

    /// Whether new data can be wrapped with a key: active, of AES, for Encrypt and Decrypt. What the
    /// KMS does not tell is not held against it.
    pub async fn check(&self, uid: &str, deadline: Instant) -> Result<(), Error> {
        const NAMES: [&str; 4] =
            ["State", "Object Type", "Cryptographic Algorithm", "Cryptographic Usage Mask"];
        let fill = |_, payload: &mut Writer| {
            payload.text(tag::UNIQUE_IDENTIFIER, uid);
            NAMES.iter().for_each(|name| payload.text(tag::ATTRIBUTE_NAME, name));
            Ok(())
        };
        let answer = self.ask(Operation::GetAttributes, uid.len(), &fill, deadline).await?;
        let told = self.read(&answer, Operation::GetAttributes, uid)?;
        let value = |name: &str| {
            let mut attributes = told.items().filter(|item| item.tag == tag::ATTRIBUTE);
            let is_it =
                |item: &Item<'_>| item.find(tag::ATTRIBUTE_NAME).and_then(Item::text) == Some(name);
            attributes.find(is_it)?.find(tag::ATTRIBUTE_VALUE)
        };
        let is =
            |name, wanted| value(name).and_then(Item::enumeration).is_none_or(|is| is == wanted);
        if let Some(state) = value("State").and_then(Item::enumeration)
            && state != ACTIVE
        {
            let state =
                usize::try_from(state).ok().and_then(|state| STATES.get(state.checked_sub(1)?));
            let text =
                format!("key {uid} is {}", state.unwrap_or(&"in a state that KMIP 1 has not"));
            return Err(Error::new(Kind::KeyState, text).with_hint(
                "new data needs an active key; some servers let no other key decrypt either",
            ));
        }
        let usage = value("Cryptographic Usage Mask").and_then(Item::integer);
        if !is("Object Type", SYMMETRIC_KEY) || !is("Cryptographic Algorithm", AES) {
            let text = format!("key {uid} is no symmetric key of AES");
            return Err(Error::new(Kind::Config, text).with_hint("name one that is"));
        }
        if usage.is_some_and(|usage| usage & ENCRYPT_AND_DECRYPT != ENCRYPT_AND_DECRYPT) {
            let text = format!("key {uid} is not for both Encrypt and Decrypt");
            return Err(Error::new(Kind::Config, text).with_hint("see its usage mask"));
        }
        Ok(())
    }

    /// Encrypts; the tag of AES-GCM stands behind the ciphertext, as servers of before KMIP 1.4 put
    /// it.
    pub async fn encrypt(
        &self,
        uid: &str,
        cipher: &Cipher<'_>,
        plaintext: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        let encrypted = self.crypt(Operation::Encrypt, uid, cipher, plaintext, deadline).await?;
        if encrypted.len() != plaintext.len() + cipher.mode.tag_len() {
            return Err(Failure::odd(Operation::Encrypt, "the answer has another length").into());
        }
        Ok(encrypted)
    }

    /// Decrypts what [`encrypt`](Self::encrypt) gave.
    pub async fn decrypt(
        &self,
        uid: &str,
        cipher: &Cipher<'_>,
        ciphertext: &[u8],
        deadline: Instant,
    ) -> Result<Secret, Error> {
        let expected = ciphertext.len().checked_sub(cipher.mode.tag_len());
        let short = || Error::new(Kind::Corrupt, "the ciphertext is shorter than its tag");
        let expected = expected.ok_or_else(short)?;
        let decrypted = self.crypt(Operation::Decrypt, uid, cipher, ciphertext, deadline).await?;
        let decrypted = Secret::new(decrypted);
        if decrypted.expose().len() != expected {
            return Err(Failure::odd(Operation::Decrypt, "the answer has another length").into());
        }
        Ok(decrypted)
    }

    async fn crypt(
        &self,
        operation: Operation,
        uid: &str,
        cipher: &Cipher<'_>,
        data: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        let fill = |version: Version, payload: &mut Writer| {
            payload.text(tag::UNIQUE_IDENTIFIER, uid);
            cipher.write(version, operation, data, payload)
        };
        let size = uid.len() + cipher.aad.len() + data.len();
        let answer = self.ask(operation, size, &fill, deadline).await?;
        match self.read(&answer, operation, uid).and_then(|payload| crypted(payload, operation)) {
            Ok(bytes) => Ok(bytes),
            Err(failure) => Err(self.explained(failure, uid, deadline).await),
        }
    }

    /// Several reasons may mean that the key is not active any more: that is asked.
    async fn explained(&self, failure: Failure, uid: &str, deadline: Instant) -> Error {
        const UNCLEAR: [u32; 4] =
            [INVALID_FIELD, ILLEGAL_OPERATION, PERMISSION_DENIED, GENERAL_FAILURE];
        if failure.reason.is_some_and(|reason| UNCLEAR.contains(&reason))
            && let Err(error) = self.check(uid, deadline).await
            && matches!(error.kind(), Kind::KeyState | Kind::Config)
        {
            return error;
        }
        failure.error
    }

    /// The payload of an answer, of the key that was asked for if it is of one.
    fn read<'a>(
        &self,
        answer: &'a [u8],
        operation: Operation,
        object: &str,
    ) -> Result<Item<'a>, Failure> {
        let payload = payload(answer, operation, object).inspect_err(|failure| {
            if failure.reason == Some(INVALID_MESSAGE) {
                // It may be another server by now, and know other versions.
                self.servers.iter().for_each(|server| server.speaks(None));
            }
        })?;
        let named = payload.find(tag::UNIQUE_IDENTIFIER).and_then(Item::text);
        match operation {
            Operation::Locate => Ok(payload),
            _ if named.is_none_or(|named| named == object) => Ok(payload),
            _ => Err(Failure::odd(operation, "the answer is of another key")),
        }
    }

    /// The answer of the first server that has one, good or bad.
    async fn ask(
        &self,
        operation: Operation,
        size: usize,
        fill: &(dyn Fn(Version, &mut Writer) -> Result<(), Error> + Sync),
        deadline: Instant,
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let late = || Error::new(Kind::Timeout, "no turn in time: other calls are not answered");
        let turn = timeout_at(deadline, self.turns.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or_else(late)?;
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.servers.len());
        let mut turns = Turns::new(count, SHARE, deadline);
        for index in (0..count).map(|turn| (first + turn) % count) {
            let server = &self.servers[index];
            let asking = async {
                let version = self.negotiated(server).await?;
                let filled = |payload: &mut Writer| fill(version, payload);
                let request = request(version, operation, size + FIELDS, filled)?;
                server.exchange(&self.dialer, &request).await
            };
            if let Some(answer) = turns.take(&server.name(), asking).await {
                self.preferred.store(index, Ordering::Relaxed);
                return Ok(answer);
            }
        }
        Err(turns.failure())
    }

    /// The version that is spoken with a server: it is asked once.
    async fn negotiated(&self, server: &Server) -> Result<Version, Error> {
        if let Some(version) = server.version() {
            return Ok(version);
        }
        let ours = |payload: &mut Writer| {
            Version::ALL.iter().for_each(|version| version.write(payload));
            Ok(())
        };
        let asked = Operation::DiscoverVersions;
        let request = request(Version::OLDEST, asked, FIELDS, ours)?;
        let answer = server.exchange(&self.dialer, &request).await?;
        let told = payload(&answer, asked, &server.name())?;
        let told = told.items().filter(|item| item.tag == tag::PROTOCOL_VERSION);
        let told: Vec<_> = told.filter_map(Version::read).collect();
        let best = Version::ALL.into_iter().find(|version| told.contains(version));
        let none = || {
            let text = format!("{}: it speaks none of KMIP 1.2 to 1.4", server.name());
            Error::new(Kind::Config, text)
        };
        let best = best.ok_or_else(none)?;
        server.speaks(Some(best));
        Ok(best)
    }
}

impl Mode {
    fn tag_len(self) -> usize {
        if self == Self::Gcm { TAG_LEN } else { 0 }
    }
}

impl Cipher<'_> {
    /// Parameters, data, IV and what else belongs to it in this version.
    fn write(
        &self,
        version: Version,
        operation: Operation,
        data: &[u8],
        payload: &mut Writer,
    ) -> Result<(), Error> {
        let apart = self.mode == Mode::Gcm && version.has_aead();
        if !self.aad.is_empty() && !apart {
            let text = format!("{version} has no additional authenticated data");
            return Err(
                Error::new(Kind::Config, text).with_hint("choose another block cipher mode")
            );
        }
        let tag_len = if apart && operation == Operation::Decrypt { TAG_LEN } else { 0 };
        let (data, tag) = data.split_at(data.len().saturating_sub(tag_len));
        payload.structure(tag::CRYPTOGRAPHIC_PARAMETERS, |parameters| {
            parameters.enumeration(tag::BLOCK_CIPHER_MODE, self.mode as u32);
            if self.mode == Mode::Cbc {
                parameters.enumeration(tag::PADDING_METHOD, NO_PADDING);
            }
            parameters.enumeration(tag::CRYPTOGRAPHIC_ALGORITHM, AES);
            if self.mode == Mode::Gcm {
                parameters.integer(tag::IV_LENGTH, self.iv.len() as i32);
                parameters.integer(tag::TAG_LENGTH, TAG_LEN as i32);
            }
        });
        payload.bytes(tag::DATA, data);
        payload.bytes(tag::IV_COUNTER_NONCE, self.iv);
        if !self.aad.is_empty() {
            payload.bytes(tag::AEAD_DATA, self.aad);
        }
        if !tag.is_empty() {
            payload.bytes(tag::AEAD_TAG, tag);
        }
        Ok(())
    }
}

/// Data, with the tag behind it if there is one.
pub(crate) fn crypted(payload: Item<'_>, operation: Operation) -> Result<Vec<u8>, Failure> {
    let bytes = |tag| payload.find(tag).and_then(Item::bytes);
    let data = bytes(tag::DATA).ok_or_else(|| Failure::odd(operation, "the answer has no data"))?;
    Ok([data, bytes(tag::AEAD_TAG).unwrap_or_default()].concat())
}

fn attribute(payload: &mut Writer, name: &str, value: impl FnOnce(&mut Writer)) {
    payload.structure(tag::ATTRIBUTE, |attribute| {
        attribute.text(tag::ATTRIBUTE_NAME, name);
        value(attribute);
    });
}
