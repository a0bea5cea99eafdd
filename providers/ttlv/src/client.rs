//! The operations, on whichever of several servers answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sidekey_core::{Error, Kind, Secret};
use sidekey_rest::servers::Turns;
use sidekey_rest::stream::Dialer;
use sidekey_rest::{Address, Trust};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use crate::codec::Item;
use crate::codec::Value::{Bytes, Enumeration, Integer, Structure, Text};
use crate::connection::Server;
use crate::protocol::{AEAD, Operation, odd, payload, request, tag};

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

const AES: u32 = 3;
const NO_PADDING: u32 = 1;
const SYMMETRIC_KEY: u32 = 2;
const ACTIVE: u32 = 2;
const DEACTIVATED: u32 = 3;
const COMPROMISED: u32 = 4;
const PLAIN_TEXT: u32 = 1;
const DECRYPT: u32 = 0x8;
const ENCRYPT_AND_DECRYPT: u32 = 0x4 | DECRYPT;
/// Of KMIP, by number.
#[rustfmt::skip]
const STATES: [&str; 7] = ["in no state", "not yet active", "active", "deactivated", "compromised", "destroyed", "destroyed and compromised"];
/// What is asked of a key.
const ATTRIBUTES: [&str; 4] =
    ["State", "Object Type", "Cryptographic Algorithm", "Cryptographic Usage Mask"];

/// A KMS that is served by one server, or by several of one cluster.
pub struct Client {
    dialer: Dialer,
    servers: Vec<Server>,
    /// The one that answered last.
    preferred: AtomicUsize,
    turns: Semaphore,
}

/// What keeps a key from wrapping new data.
struct Unfit {
    error: Error,
    /// It may decrypt all the same.
    reads: bool,
}

/// How data is encrypted; there is never any padding.
#[derive(Clone, Copy, Debug)]
pub struct Cipher<'a> {
    /// The block cipher mode, with AES.
    pub mode: Mode,
    /// IV, counter or nonce, as long as the mode has it.
    pub iv: &'a [u8],
    /// Additional authenticated data, of AES-GCM alone, and from KMIP 1.4 on.
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
    let ported = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if ported { String::new() } else { format!(":{PORT}") };
    Address::parse(&format!("https://{text}{port}"))
        .map_err(|_| format!("{text:?} is no address of a KMIP server: write host[:port]"))
}

impl Client {
    /// A client that has not connected to anybody yet.
    pub fn new(trust: &Trust, addresses: impl IntoIterator<Item = Address>) -> Self {
        let servers = addresses.into_iter().map(Server::new).collect();
        let (dialer, preferred) = (Dialer::new(trust, CONNECT), AtomicUsize::new(0));
        Self { dialer, servers, preferred, turns: Semaphore::new(CALLS) }
    }

    /// The unique identifiers of the active symmetric keys of this name: some of them, if there are
    /// more than anybody wants.
    pub async fn locate(&self, name: &str, deadline: Instant) -> Result<Vec<String>, Error> {
        let name_value = [(tag::NAME_VALUE, Text(name)), (tag::NAME_TYPE, Enumeration(PLAIN_TEXT))];
        let wanted = [
            ("Name", Structure(&name_value)),
            ("State", Enumeration(ACTIVE)),
            ("Object Type", Enumeration(SYMMETRIC_KEY)),
        ];
        let wanted = wanted.map(|(name, value)| {
            [(tag::ATTRIBUTE_NAME, Text(name)), (tag::ATTRIBUTE_VALUE, value)]
        });
        let mut fields = vec![(tag::MAXIMUM_ITEMS, Integer(MAX_FOUND))];
        fields.extend(wanted.iter().map(|attribute| (tag::ATTRIBUTE, Structure(attribute))));
        let asked = Operation::Locate;
        let answer = self.ask(deadline, &|minor| Ok(request(minor, asked, &fields))).await?;
        let found = payload(&answer, asked, name)?.items();
        let found = found.filter(|item| item.tag == tag::UNIQUE_IDENTIFIER);
        let found: Option<Vec<_>> = found.map(|item| item.text().map(str::to_owned)).collect();
        found.ok_or_else(|| odd(asked, "an identifier is no text"))
    }

    /// Whether new data can be wrapped with a key: active, of AES, for Encrypt and Decrypt. What the
    /// KMS does not tell is not held against it.
    pub async fn check(&self, uid: &str, deadline: Instant) -> Result<(), Error> {
        self.unfit(uid, deadline).await?.map_or(Ok(()), |unfit| Err(unfit.error))
    }

    async fn unfit(&self, uid: &str, deadline: Instant) -> Result<Option<Unfit>, Error> {
        let mut fields = vec![(tag::UNIQUE_IDENTIFIER, Text(uid))];
        fields.extend(ATTRIBUTES.map(|name| (tag::ATTRIBUTE_NAME, Text(name))));
        let asked = Operation::GetAttributes;
        let answer = self.ask(deadline, &|minor| Ok(request(minor, asked, &fields))).await?;
        let told = payload(&answer, asked, uid)?;
        let pairs = told.items().filter_map(|one| {
            let name = one.find(tag::ATTRIBUTE_NAME)?.text()?;
            Some((name, one.find(tag::ATTRIBUTE_VALUE)?.number()?))
        });
        let told: BTreeMap<_, _> = pairs.collect();
        let [state, object, algorithm, usage] = ATTRIBUTES.map(|name| told.get(name).copied());
        let (state, usage) = (state.unwrap_or(ACTIVE), usage.unwrap_or(ENCRYPT_AND_DECRYPT));
        let (kind, what, hint, reads) = if state != ACTIVE {
            let what = *STATES.get(state as usize).unwrap_or(&STATES[0]);
            let hint = "new data needs an active key; some servers let no other decrypt either";
            (Kind::KeyState, what, hint, matches!(state, DEACTIVATED | COMPROMISED))
        } else if object.unwrap_or(SYMMETRIC_KEY) != SYMMETRIC_KEY
            || algorithm.unwrap_or(AES) != AES
        {
            (Kind::Config, "no symmetric key of AES", "name one that is", false)
        } else if usage & ENCRYPT_AND_DECRYPT != ENCRYPT_AND_DECRYPT {
            let reads = usage & DECRYPT != 0;
            (Kind::Config, "not for both Encrypt and Decrypt", "see its usage mask", reads)
        } else {
            return Ok(None);
        };
        let error = Error::new(kind, format!("key {uid} is {what}")).with_hint(hint);
        Ok(Some(Unfit { error, reads }))
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
        let length = plaintext.len() + cipher.tag_len();
        let asked = self.crypt(Operation::Encrypt, uid, cipher, plaintext, length, deadline);
        asked.await.map(|encrypted| encrypted.expose().to_vec())
    }

    /// Decrypts what [`encrypt`](Self::encrypt) gave.
    pub async fn decrypt(
        &self,
        uid: &str,
        cipher: &Cipher<'_>,
        ciphertext: &[u8],
        deadline: Instant,
    ) -> Result<Secret, Error> {
        let short = || Error::new(Kind::Corrupt, "the ciphertext is shorter than its tag");
        let length = ciphertext.len().checked_sub(cipher.tag_len()).ok_or_else(short)?;
        self.crypt(Operation::Decrypt, uid, cipher, ciphertext, length, deadline).await
    }

    /// Whatever is refused, the key's state says best why. That of a key which may decrypt all the
    /// same explains a refusal of Decrypt, but no outage, and no data that does not authenticate.
    async fn crypt(
        &self,
        operation: Operation,
        uid: &str,
        cipher: &Cipher<'_>,
        data: &[u8],
        length: usize,
        deadline: Instant,
    ) -> Result<Secret, Error> {
        let ask = |minor| cipher.request(minor, operation, uid, data);
        let answer = self.ask(deadline, &ask).await?;
        let error = match payload(&answer, operation, uid).map(crypted) {
            Ok(secret) if secret.expose().len() == length => return Ok(secret),
            Ok(_) => return Err(odd(operation, "the answer has another length")),
            Err(error) => error,
        };
        let refused = matches!(error.kind(), Kind::Denied | Kind::KeyState | Kind::Config);
        let stands = |unfit: &Unfit| operation == Operation::Decrypt && unfit.reads && !refused;
        match self.unfit(uid, deadline).await {
            Ok(Some(unfit)) if !stands(&unfit) => Err(unfit.error),
            Err(gone) if gone.kind() == Kind::KeyState => Err(gone),
            _ => Err(error),
        }
    }

    /// The answer of the first server that has one, good or bad.
    async fn ask(
        &self,
        deadline: Instant,
        ask: &(dyn Fn(i32) -> Result<Zeroizing<Vec<u8>>, Error> + Sync),
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let late = || Error::new(Kind::Timeout, "no turn in time: other calls are not answered");
        let turn = timeout_at(deadline, self.turns.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or_else(late)?;
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.servers.len());
        let mut turns = Turns::new(count, SHARE, deadline);
        for index in (0..count).map(|turn| (first + turn) % count) {
            let server = &self.servers[index];
            let asking = server.ask(&self.dialer, ask);
            if let Some(answer) = turns.take(&server.address.authority(), asking).await {
                self.preferred.store(index, Ordering::Relaxed);
                return Ok(answer);
            }
        }
        Err(turns.failure())
    }
}

impl Cipher<'_> {
    fn tag_len(&self) -> usize {
        if self.mode == Mode::Gcm { TAG_LEN } else { 0 }
    }

    /// What is asked for in this version. A tag is behind the ciphertext, or apart from it.
    fn request(
        &self,
        minor: i32,
        operation: Operation,
        uid: &str,
        data: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let apart = self.mode == Mode::Gcm && minor >= AEAD;
        if !self.aad.is_empty() && !apart {
            let text =
                format!("KMIP 1.{minor}, or this mode, has no additional authenticated data");
            let hint = "choose another block cipher mode, or a server that speaks KMIP 1.4";
            return Err(Error::new(Kind::Config, text).with_hint(hint));
        }
        let tag_len = if apart && operation == Operation::Decrypt { TAG_LEN } else { 0 };
        let (data, tag) = data.split_at(data.len().saturating_sub(tag_len));
        let mut parameters = vec![(tag::BLOCK_CIPHER_MODE, Enumeration(self.mode as u32))];
        if self.mode == Mode::Cbc {
            parameters.push((tag::PADDING_METHOD, Enumeration(NO_PADDING)));
        }
        parameters.push((tag::CRYPTOGRAPHIC_ALGORITHM, Enumeration(AES)));
        if self.mode == Mode::Gcm {
            parameters.push((tag::IV_LENGTH, Integer(self.iv.len() as i32)));
            parameters.push((tag::TAG_LENGTH, Integer(TAG_LEN as i32)));
        }
        let mut fields = vec![
            (tag::UNIQUE_IDENTIFIER, Text(uid)),
            (tag::CRYPTOGRAPHIC_PARAMETERS, Structure(&parameters)),
            (tag::DATA, Bytes(data)),
            (tag::IV_COUNTER_NONCE, Bytes(self.iv)),
            (tag::AEAD_DATA, Bytes(self.aad)),
            (tag::AEAD_TAG, Bytes(tag)),
        ];
        fields.retain(|(_, value)| !matches!(value, Bytes([])));
        Ok(request(minor, operation, &fields))
    }
}

/// Data, with the tag behind it if there is one; what is missing is not of the right length.
pub(crate) fn crypted(payload: Item<'_>) -> Secret {
    let bytes = |tag| payload.find(tag).and_then(Item::bytes).unwrap_or_default();
    Secret::new([bytes(tag::DATA), bytes(tag::AEAD_TAG)].concat())
}
