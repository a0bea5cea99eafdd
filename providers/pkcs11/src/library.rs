//! A vendor's library: loaded once, initialised anew when nothing else helps, and its sessions.
//!
//! Everything here blocks, for as long as the library likes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error as Failure, RvError};
use cryptoki::session::{Session, SessionState, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::AuthPin;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use sidekey_core::{Error, Kind, Secret, sha256};

use crate::codes::{self, explain, found};
use crate::object::{Object, Selector};

/// The libraries of this process. None is ever unloaded: many do not survive that.
static LIBRARIES: Mutex<BTreeMap<PathBuf, Arc<Library>>> = Mutex::new(BTreeMap::new());

/// A library that was initialised is given time before that is done again.
const RENEWAL: Duration = Duration::from_secs(5);

/// One library.
pub(crate) struct Library {
    path: PathBuf,
    loaded: OnceLock<Pkcs11>,
    /// When it was initialised. Calls share it; who initialises it anew has it alone.
    initialised: RwLock<Option<Instant>>,
    idle: Mutex<Vec<Link>>,
    /// PINs that were refused, by the serial number of their token. Who logs in holds it.
    refused: Mutex<BTreeSet<(String, [u8; 32])>>,
}

/// Which token it is: all that is set must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) label: Option<String>,
    pub(crate) serial: Option<String>,
    pub(crate) slot: Option<u64>,
}

/// A session that is logged in, and what was found in it: handles belong to it.
pub(crate) struct Link {
    token: Token,
    pub(crate) serial: String,
    pub(crate) session: Session,
    pub(crate) found: Vec<(Selector, Object)>,
}

/// A static program has no loader.
pub(crate) fn check_dynamic() -> Result<(), Error> {
    let is_static = cfg!(target_feature = "crt-static");
    if is_static { Err(found(&"this build of sidekey-pkcs11", codes::STATIC)) } else { Ok(()) }
}

impl Library {
    /// The one library of that path; it is loaded when it is first used.
    pub(crate) fn of(path: &Path) -> Arc<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let new = || {
            Arc::new(Self {
                path: path.clone(),
                loaded: OnceLock::new(),
                initialised: RwLock::new(None),
                idle: Mutex::default(),
                refused: Mutex::default(),
            })
        };
        LIBRARIES.lock().entry(path.clone()).or_insert_with(new).clone()
    }

    /// Works in a session with the token. What fails there costs the sessions with it, and what
    /// fails in a new one has the library initialised anew: some see a token that was away, or a
    /// network that was, only then. The caller tries again.
    pub(crate) fn with<T>(
        &self,
        token: &Token,
        pin: Option<&Secret>,
        work: impl FnOnce(&mut Link) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (library, ready) = self.ready()?;
        let held = {
            let mut idle = self.idle.lock();
            let place = idle.iter().position(|link| link.token == *token);
            place.map(|place| idle.swap_remove(place))
        };
        let is_new = held.is_none();
        let link = held.map_or_else(|| self.open(library, token, pin), Ok);
        let result = link.and_then(|mut link| {
            let result = work(&mut link);
            match &result {
                Err(error) if is_lost(error) => {
                    self.idle.lock().retain(|other| other.token != *token);
                }
                _ => self.idle.lock().push(link),
            }
            result
        });
        drop(ready);
        if is_new && result.as_ref().is_err_and(is_lost) {
            self.renew(library);
        }
        result
    }

    /// The library, which nobody ends while the guard is held.
    fn ready(&self) -> Result<(&Pkcs11, RwLockReadGuard<'_, Option<Instant>>), Error> {
        loop {
            let shared = self.initialised.read();
            if let Some(library) = self.loaded.get().filter(|_| shared.is_some()) {
                return Ok((library, shared));
            }
            drop(shared);
            let mut alone = self.initialised.write();
            if alone.is_none() {
                self.initialise()?;
                *alone = Some(Instant::now());
            }
        }
    }

    fn initialise(&self) -> Result<(), Error> {
        check_dynamic()?;
        let path = self.path.display();
        if self.loaded.get().is_none() {
            let library = format!("library {path}");
            let bad = |failure| found(&library, codes::NO_LIBRARY).with_source(failure);
            // Nobody else is here.
            let _ = self.loaded.set(Pkcs11::new(&self.path).map_err(bad)?);
        }
        let flags = CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK);
        match self.loaded.get().map_or(Ok(()), |library| library.initialize(flags)) {
            Ok(()) | Err(Failure::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(()),
            Err(failure) => Err(explain("initialise", &path, &failure)),
        }
    }

    /// Not while others work with it: it works for them, or they will come here too.
    fn renew(&self, library: &Pkcs11) {
        let Some(mut alone) = self.initialised.try_write() else { return };
        if alone.is_some_and(|since| since.elapsed() > RENEWAL) {
            tracing::info!(library = %self.path.display(), "library is initialised anew");
            self.idle.lock().clear();
            // What ends badly has ended, too.
            let _ = library.clone().finalize();
            *alone = None;
        }
    }

    fn open(&self, library: &Pkcs11, token: &Token, pin: Option<&Secret>) -> Result<Link, Error> {
        let (slot, info) = token.find(library)?;
        let failed = |failure| explain("open a session", token, &failure);
        let session = library.open_ro_session(slot).map_err(failed)?;
        self.log_in(&session, &info, token, pin)?;
        let serial = info.serial_number().to_owned();
        Ok(Link { token: token.clone(), serial, session, found: Vec::new() })
    }

    /// One login is for all sessions of the process with a token. Wrong PINs lock tokens: none is
    /// tried twice, whichever key brings it, and none at all where the next wrong one locks.
    fn log_in(
        &self,
        session: &Session,
        info: &TokenInfo,
        token: &Token,
        pin: Option<&Secret>,
    ) -> Result<(), Error> {
        let mut refused = self.refused.lock();
        let state = session.get_session_info().map(|info| info.session_state());
        if !info.login_required() || matches!(state, Ok(SessionState::RoUser)) {
            return Ok(());
        }
        let tried = pin.map(|pin| (info.serial_number().to_owned(), sha256(pin.expose())));
        let was_refused = tried.as_ref().is_some_and(|tried| refused.contains(tried));
        let secret = match pin.map(pin_text) {
            _ if was_refused => return Err(found(token, codes::REFUSED)),
            _ if info.user_pin_locked() => return Err(found(token, codes::LOCKED)),
            _ if info.user_pin_final_try() => return Err(found(token, codes::LAST_TRY)),
            None if info.protected_authentication_path() => None,
            None => return Err(found(token, codes::NO_PIN)),
            Some(None) => return Err(found(token, codes::BAD_PIN)),
            Some(Some(text)) => Some(AuthPin::from(text.to_owned())),
        };
        match session.login(UserType::User, secret.as_ref()) {
            Ok(()) | Err(Failure::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
            Err(failure) => {
                let error = explain("log in", token, &failure);
                refused.extend(tried.filter(|_| error.kind() == Kind::Denied));
                Err(error)
            }
        }
    }
}

impl Token {
    /// Where the token is now: slots move when libraries are initialised.
    fn find(&self, library: &Pkcs11) -> Result<(Slot, TokenInfo), Error> {
        let failed = |failure| explain("look for slots", self, &failure);
        let slots = library.get_slots_with_token().map_err(failed)?.into_iter();
        // What is in other slots may be broken.
        let tokens = slots.filter_map(|slot| Some((slot, library.get_token_info(slot).ok()?)));
        let mut fitting = tokens.filter(|(slot, info)| {
            self.slot.is_none_or(|wanted| slot.id() == wanted)
                && self.label.as_deref().is_none_or(|wanted| info.label() == wanted)
                && self.serial.as_deref().is_none_or(|wanted| info.serial_number() == wanted)
        });
        let first = fitting.next().ok_or_else(|| found(self, codes::NO_TOKEN))?;
        if fitting.next().is_some() { Err(found(self, codes::TOKENS)) } else { Ok(first) }
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("token")?;
        self.label.iter().try_for_each(|label| write!(f, " {label:?}"))?;
        self.serial.iter().try_for_each(|serial| write!(f, " with serial number {serial:?}"))?;
        self.slot.iter().try_for_each(|slot| write!(f, " in slot {slot}"))
    }
}

/// Whether what failed may be the session's fault, or the device's.
fn is_lost(error: &Error) -> bool {
    error.kind() == Kind::Unavailable
}

/// A PIN is one line, whatever it was written with.
fn pin_text(pin: &Secret) -> Option<&str> {
    std::str::from_utf8(pin.expose()).ok().map(|text| text.trim_end_matches(['\r', '\n']))
}
