use std::collections::VecDeque;

use aws_credential_types::provider;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::future;

use super::*;

/// Gives what it has been told to, one after another.
#[derive(Debug)]
struct Script(Mutex<VecDeque<provider::Result>>);

impl ProvideCredentials for Script {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let next = self.0.lock().unwrap().pop_front();
        let empty = || Err(CredentialsError::not_loaded("the script is at its end"));
        future::ProvideCredentials::ready(next.unwrap_or_else(empty))
    }
}

fn keys(id: &str, life: Option<u64>) -> provider::Result {
    let end = life.map(|life| SystemTime::now() + Duration::from_secs(life));
    Ok(Credentials::new(id, "secret", None, end, "test"))
}

fn failure() -> provider::Result {
    Err(CredentialsError::provider_error("STS is away"))
}

fn identity(script: Vec<provider::Result>) -> Identity {
    Identity::new(SharedCredentialsProvider::new(Script(Mutex::new(script.into()))))
}

/// Lets what runs in the background run.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn lasting_keys_are_asked_for_once() {
    let identity = identity(vec![keys("a", None)]);
    for _ in 0..3 {
        identity.ready().await.unwrap();
        assert_eq!(identity.access_key_id().as_deref(), Some("a"));
    }
    assert_eq!(identity.expiry(), None);
}

#[tokio::test]
async fn a_session_near_its_end_is_renewed_while_it_still_serves() {
    let identity = identity(vec![keys("old", Some(3600)), keys("new", Some(3600))]);
    identity.ready().await.unwrap();
    identity.state().held.as_mut().unwrap().stale = Some(SystemTime::now());
    identity.ready().await.unwrap();
    settle().await;
    assert_eq!(identity.access_key_id().as_deref(), Some("new"));
}

#[tokio::test]
async fn the_old_session_serves_while_it_cannot_be_renewed() {
    let identity = identity(vec![keys("old", Some(3600)), failure(), keys("new", Some(3600))]);
    identity.ready().await.unwrap();
    identity.state().held.as_mut().unwrap().stale = Some(SystemTime::now());
    for _ in 0..3 {
        identity.ready().await.unwrap();
        settle().await;
    }
    assert_eq!(identity.access_key_id().as_deref(), Some("old"), "one failure, then a pause");
    identity.state().pause = None;
    identity.ready().await.unwrap();
    settle().await;
    assert_eq!(identity.access_key_id().as_deref(), Some("new"));
}

#[tokio::test]
async fn an_ended_session_is_never_used() {
    let identity = identity(vec![keys("old", Some(1)), failure(), keys("new", Some(3600))]);
    identity.ready().await.unwrap();
    assert!(identity.ready().await.is_err());
    identity.ready().await.unwrap();
    assert_eq!(identity.access_key_id().as_deref(), Some("new"));
}

#[tokio::test]
async fn keys_that_aws_refuses_are_given_up_once_for_all_who_used_them() {
    let identity = identity(vec![keys("old", Some(3600)), keys("new", Some(3600))]);
    identity.ready().await.unwrap();
    identity.refused(Some("old")).await.unwrap();
    identity.refused(Some("old")).await.unwrap();
    assert_eq!(identity.access_key_id().as_deref(), Some("new"));
}

#[tokio::test]
async fn keys_that_cannot_stand_in_a_request_are_refused() {
    for id in ["", "AKIA\r\nhost: elsewhere", "two words", "AKIA\u{e4}"] {
        let error = identity(vec![keys(id, None)]).ready().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Config, "{id:?}");
    }
}

/// Takes the question and says nothing, but for the last time.
#[derive(Debug)]
struct Hung(Mutex<u32>);

impl ProvideCredentials for Hung {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let mut left = self.0.lock().unwrap();
        match left.checked_sub(1) {
            None => future::ProvideCredentials::ready(keys("new", None)),
            Some(less) => {
                *left = less;
                future::ProvideCredentials::new(std::future::pending())
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_is_not_waited_for_for_ever_nor_asked_by_everybody() {
    let identity = Identity::new(SharedCredentialsProvider::new(Hung(Mutex::new(1))));
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let identity = identity.clone();
            tokio::spawn(async move {
                // Less than the source takes to be given up.
                timeout(Duration::from_secs(3), identity.ready()).await.is_err()
            })
        })
        .collect();
    for caller in callers {
        assert!(caller.await.unwrap());
    }
    let patient = identity.ready().await.unwrap_err();
    assert_eq!(patient.kind(), Kind::Timeout, "{}", patient.report());
    assert!(patient.needs_reload());
    identity.ready().await.unwrap();
    assert_eq!(identity.access_key_id().as_deref(), Some("new"));
}

#[test]
fn sessions_are_renewed_early_but_not_at_once() {
    let now = SystemTime::now();
    let stale = |life: u64| {
        let end = now + Duration::from_secs(life);
        let held = Held::new(Credentials::new("a", "b", None, Some(end), "test"), now);
        held.stale.unwrap().duration_since(now).unwrap().as_secs()
    };
    assert!((3200..3400).contains(&stale(3600)));
    assert!((20..40).contains(&stale(60)));
}
