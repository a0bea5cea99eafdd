//! Who asks, and what he may see: the API server says.
//!
//! Its answers are kept for a moment, so that a page that comes anew costs it nothing. Tokens are
//! not: what is kept is known by their hash.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::HeaderValue;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::Error;
use crate::cluster::refused;
use crate::operator::run::Name;

/// How long an answer is good. Who loses a right sees for so long what he saw before.
const KEPT: Duration = Duration::from_secs(30);
/// Answers that are kept.
const MOST: usize = 4096;
/// Longest token.
const MAX_TOKEN: usize = 16 * 1024;
/// Questions that are under way at once.
const AT_ONCE: usize = 8;

/// A hash of a token, or of a user.
type Hashed = [u8; 32];

/// Asks the API server.
pub(super) struct Gate {
    tokens: Api<TokenReview>,
    access: Api<SubjectAccessReview>,
    users: Memory<Hashed, Option<User>>,
    verdicts: Memory<(Hashed, Right), bool>,
    turns: Semaphore,
}

/// Somebody whom the cluster knows.
#[derive(Clone, Debug)]
pub(super) struct User {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
    hash: Hashed,
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Right {
    /// See all SecretEncryptions.
    SeeAll,
    /// See this one.
    See(Name),
    /// Read the metrics.
    Metrics,
}

/// Answers that are good for a moment.
struct Memory<K, V>(Mutex<HashMap<K, (Instant, V)>>);

/// The token that a caller shows: as a bearer, or as the password of a browser.
pub(super) fn token(header: &HeaderValue) -> Option<String> {
    let (scheme, value) = header.to_str().ok()?.split_once(' ')?;
    let token = if scheme.eq_ignore_ascii_case("bearer") {
        value.trim().to_owned()
    } else if scheme.eq_ignore_ascii_case("basic") {
        let text = String::from_utf8(STANDARD.decode(value.trim()).ok()?).ok()?;
        text.split_once(':')?.1.to_owned()
    } else {
        return None;
    };
    let sound = !token.is_empty() && token.len() <= MAX_TOKEN;
    (sound && token.bytes().all(|b| b.is_ascii_graphic())).then_some(token)
}

impl Gate {
    pub(super) fn new(client: &Client) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            access: Api::all(client.clone()),
            users: Memory::default(),
            verdicts: Memory::default(),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// Whose token it is; nobody's, if the cluster does not accept it.
    pub(super) async fn user(&self, token: &str) -> Result<Option<User>, Error> {
        let hash = sidekey_core::sha256(token.as_bytes());
        if let Some(user) = self.users.recall(&hash) {
            return Ok(user);
        }
        let _turn = self.turns.acquire().await;
        let spec = TokenReviewSpec { token: token.to_owned(), ..Default::default() };
        let review = TokenReview { spec, ..Default::default() };
        let answer = self.tokens.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| refused("cannot ask whose token it is", error))?;
        let status = answer.status.unwrap_or_default();
        let accepted = status.authenticated == Some(true) && status.error.is_none();
        let user = status.user.filter(|_| accepted).and_then(User::of);
        self.users.keep(hash, user.clone());
        Ok(user)
    }

    /// Whether somebody has a right.
    pub(super) async fn may(&self, user: &User, right: &Right) -> Result<bool, Error> {
        let key = (user.hash, right.clone());
        if let Some(verdict) = self.verdicts.recall(&key) {
            return Ok(verdict);
        }
        let _turn = self.turns.acquire().await;
        let review = SubjectAccessReview { spec: right.asked(user), ..Default::default() };
        let answer = self.access.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| refused("cannot ask who may see what", error))?;
        let verdict = answer.status.is_some_and(|s| s.allowed && s.denied != Some(true));
        self.verdicts.keep(key, verdict);
        Ok(verdict)
    }

    /// Which of these somebody may see.
    pub(super) async fn may_see(
        &self,
        user: &User,
        names: Vec<Name>,
    ) -> Result<BTreeSet<Name>, Error> {
        let asked = stream::iter(names).map(async |name| {
            let may = self.may(user, &Right::See(name.clone())).await?;
            Ok::<_, Error>(may.then_some(name))
        });
        let seen: Vec<Option<Name>> = asked.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(seen.into_iter().flatten().collect())
    }
}

impl User {
    fn of(info: UserInfo) -> Option<Self> {
        let name = info.username.clone().filter(|name| !name.is_empty())?;
        let all = serde_json::to_vec(&info).ok()?;
        Some(Self {
            name,
            uid: info.uid,
            groups: info.groups.unwrap_or_default(),
            extra: info.extra.unwrap_or_default(),
            hash: sidekey_core::sha256(&all),
        })
    }
}

impl Right {
    /// How somebody asks for himself.
    pub(super) fn question(&self) -> String {
        let see = "kubectl auth can-i";
        match self {
            Self::SeeAll => format!("{see} list secretencryptions.sidekey.dev --all-namespaces"),
            Self::See(Name { namespace, name }) => {
                format!("{see} get secretencryptions.sidekey.dev/{name} --namespace {namespace}")
            }
            Self::Metrics => format!("{see} get /metrics"),
        }
    }

    fn asked(&self, user: &User) -> SubjectAccessReviewSpec {
        let resource = |verb: &str, name: Option<&Name>| ResourceAttributes {
            group: Some("sidekey.dev".to_owned()),
            resource: Some("secretencryptions".to_owned()),
            verb: Some(verb.to_owned()),
            namespace: name.map(|name| name.namespace.clone()),
            name: name.map(|name| name.name.clone()),
            ..Default::default()
        };
        let mut spec = SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: user.uid.clone(),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            ..Default::default()
        };
        match self {
            Self::SeeAll => spec.resource_attributes = Some(resource("list", None)),
            Self::See(name) => spec.resource_attributes = Some(resource("get", Some(name))),
            Self::Metrics => {
                let path = Some("/metrics".to_owned());
                let verb = Some("get".to_owned());
                spec.non_resource_attributes = Some(NonResourceAttributes { path, verb });
            }
        }
        spec
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Memory<K, V> {
    fn recall(&self, key: &K) -> Option<V> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, value) = kept.get(key)?;
        (since.elapsed() < KEPT).then(|| value.clone())
    }

    fn keep(&self, key: K, value: V) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST {
            kept.retain(|_, (since, _)| since.elapsed() < KEPT);
        }
        if kept.len() >= MOST {
            kept.clear();
        }
        kept.insert(key, (Instant::now(), value));
    }
}

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_as_bearers_and_as_passwords_and_as_nothing_else() {
        let read = |text: &str| token(&HeaderValue::from_str(text).unwrap());
        let basic = |text: &str| read(&format!("Basic {}", STANDARD.encode(text)));
        assert_eq!(read("Bearer abc.def").as_deref(), Some("abc.def"));
        assert_eq!(read("bearer  abc").as_deref(), Some("abc"));
        assert_eq!(basic("anybody:abc").as_deref(), Some("abc"));
        assert_eq!(basic(":a:b").as_deref(), Some("a:b"));
        let long = format!("Bearer {}", "x".repeat(MAX_TOKEN + 1));
        for bad in ["", "Bearer", "Bearer ", "Bearer a b", "Digest abc", "Basic !!!", &long] {
            assert_eq!(read(bad), None, "{bad:.20}");
        }
        for bad in ["no colon", "user:", "user:two words", "user:line\n"] {
            assert_eq!(basic(bad), None, "{bad:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_good_for_a_moment_and_never_grows_without_end() {
        let memory: Memory<usize, usize> = Memory::default();
        for key in 0..3 * MOST {
            memory.keep(key, key);
            assert!(memory.0.lock().unwrap().len() <= MOST);
        }
        assert_eq!(memory.recall(&(3 * MOST - 1)), Some(3 * MOST - 1));
        tokio::time::advance(KEPT).await;
        assert_eq!(memory.recall(&(3 * MOST - 1)), None);
    }
}
