//! A vendor's library: loaded once, initialised anew when nothing else helps, and its sessions.
//!
//! Everything here blocks, for as long as the library likes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
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

/// A library that was initialised is given time before that is done again, and twice as much
/// whenever it has not helped.
const RENEWAL: Duration = Duration::from_secs(5);
/// How often that is doubled: to some five minutes.
const MAX_DOUBLINGS: u32 = 6;

/// What a failed login says nothing of the PIN with: it was not looked at.
#[rustfmt::skip]
const NO_TRY: [RvError; 12] = [
    RvError::CryptokiNotInitialized, RvError::DeviceError, RvError::DeviceMemory, RvError::DeviceRemoved, RvError::HostMemory,
    RvError::SessionClosed, RvError::SessionCount, RvError::SessionHandleInvalid, RvError::SessionReadOnlyExists,
    RvError::TokenNotPresent, RvError::TokenNotRecognized, RvError::UserAnotherAlreadyLoggedIn,
];

/// One library.
pub(crate) struct Library {
    path: PathBuf,
    loaded: OnceLock<Pkcs11>,
    /// When it was initialised. Calls share it; who initialises it anew has it alone.
    initialised: RwLock<Option<Instant>>,
    idle: Mutex<Vec<Link>>,
    /// How often it was initialised anew since a call has succeeded.
    in_vain: AtomicU32,
    /// PINs that were refused, by the serial number of their token.
    refused: Mutex<BTreeMap<String, Arc<Refused>>>,
}

/// PINs that a token has refused. Who logs in to it holds them.
type Refused = Mutex<BTreeSet<[u8; 32]>>;

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
    /// Whether what failed in it tells nothing of it.
    pub(crate) is_vague: Cell<bool>,
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
                in_vain: AtomicU32::new(0),
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
        let (result, is_broken) = match link {
            Err(error) => {
                let is_broken = is_lost(&error);
                (Err(error), is_broken)
            }
            Ok(mut link) => {
                let result = work(&mut link);
                let is_vague = link.is_vague.take();
                let is_broken = !is_vague && result.as_ref().is_err_and(is_lost);
                self.put_back(link, is_broken);
                (result, is_broken)
            }
        };
        drop(ready);
        match is_broken {
            true if is_new => self.renew(library, token),
            true => {}
            false => self.in_vain.store(0, Ordering::Relaxed),
        }
        result
    }

    /// Where others find it, unless it is broken, and those with it. To close a session takes time.
    fn put_back(&self, link: Link, is_broken: bool) {
        let mut idle = self.idle.lock();
        let mut lost = Vec::new();
        if is_broken {
            lost.extend(idle.extract_if(.., |other| other.token == link.token));
            lost.push(link);
        } else {
            idle.push(link);
        }
        drop(idle);
        drop(lost);
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

    /// Not while others work with it: it works for them, or they will come here too. Nor while it
    /// works for another token, whose sessions and login that would cost.
    fn renew(&self, library: &Pkcs11, token: &Token) {
        let Some(mut alone) = self.initialised.try_write() else { return };
        let pause = pause_after(self.in_vain.load(Ordering::Relaxed));
        if alone.is_none_or(|since| since.elapsed() <= pause) {
            return;
        }
        let idle = std::mem::take(&mut *self.idle.lock());
        let works = |link: &Link| link.token != *token && link.session.get_session_info().is_ok();
        if idle.iter().any(works) {
            // Nobody else has put any there: they wait.
            *self.idle.lock() = idle;
            return;
        }
        tracing::info!(library = %self.path.display(), "library is initialised anew");
        drop(idle);
        // What ends badly has ended, too.
        let _ = library.clone().finalize();
        self.in_vain.fetch_add(1, Ordering::Relaxed);
        *alone = None;
    }

    fn open(&self, library: &Pkcs11, token: &Token, pin: Option<&Secret>) -> Result<Link, Error> {
        let (slot, info) = token.find(library)?;
        let failed = |failure| explain("open a session", token, &failure);
        let session = library.open_ro_session(slot).map_err(failed)?;
        let serial = info.serial_number().to_owned();
        let refused = self.refused.lock().entry(serial.clone()).or_default().clone();
        let mut refused = refused.lock();
        // Others may have tried since.
        let info = library.get_token_info(slot).map_err(failed)?;
        log_in(&session, &info, token, pin, &mut refused)?;
        let (found, is_vague) = (Vec::new(), Cell::default());
        Ok(Link { token: token.clone(), serial, session, found, is_vague })
    }
}

/// One login is for all sessions of the process with a token. Wrong PINs lock tokens: none is
/// tried twice, whichever key brings it, and none at all where the next wrong one locks.
fn log_in(
    session: &Session,
    info: &TokenInfo,
    token: &Token,
    pin: Option<&Secret>,
    refused: &mut BTreeSet<[u8; 32]>,
) -> Result<(), Error> {
    let state = session.get_session_info().map(|info| info.session_state());
    if !info.login_required() || matches!(state, Ok(SessionState::RoUser)) {
        return Ok(());
    }
    let tried = pin.map(|pin| sha256(pin.expose()));
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
            let no_try = matches!(&failure, Failure::Pkcs11(code, _) if NO_TRY.contains(code));
            refused.extend(tried.filter(|_| !no_try));
            Err(explain("log in", token, &failure))
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

/// How long a library is left alone that was initialised anew so often in vain.
fn pause_after(in_vain: u32) -> Duration {
    RENEWAL * 2_u32.pow(in_vain.min(MAX_DOUBLINGS))
}

/// Whether what failed may be the session's fault, or the device's.
fn is_lost(error: &Error) -> bool {
    error.kind() == Kind::Unavailable
}

/// A PIN is one line, whatever it was written with.
fn pin_text(pin: &Secret) -> Option<&str> {
    std::str::from_utf8(pin.expose()).ok().map(|text| text.trim_end_matches(['\r', '\n']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_left_alone_for_longer_each_time_and_for_minutes_at_most() {
        let pauses = [0, 1, 2, 6, 7, u32::MAX].map(|in_vain| pause_after(in_vain).as_secs());
        assert_eq!(pauses, [5, 10, 20, 320, 320, 320]);
    }
}
