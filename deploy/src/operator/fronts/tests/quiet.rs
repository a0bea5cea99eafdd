//! Looks at a HostedCluster where nothing has changed.

use serde_json::json;

use super::*;
use crate::operator::context::Context;

/// Requests of one look.
async fn look(fake: &Fake, ctx: &Context) -> usize {
    fake.lock().requests = 0;
    let object = fake.object(HOSTED);
    crate::operator::fronts::hosted_cluster(&object, ctx).await.unwrap();
    fake.lock().requests
}

fn version(fake: &Fake, path: &str, version: &str) {
    fake.change(path, |object| object["metadata"]["resourceVersion"] = version.into());
}

/// A HostedCluster that is translated, with credentials in a Secret.
async fn translated() -> (Fake, Context) {
    let fake = world(aescbc("keys-a"));
    fake.put_secret(SOURCES, "keys-a", &[("key", &[7; 32])]);
    version(&fake, &fake::secret(SOURCES, "keys-a"), "5");
    version(&fake, HOSTED, "1");
    let ctx = fake.context();
    for _ in 0..2 {
        look(&fake, &ctx).await;
    }
    version(&fake, HOSTED, "2");
    look(&fake, &ctx).await;
    (fake, ctx)
}

#[tokio::test]
async fn a_look_takes_one_request_for_each_source_until_something_changes() {
    let (fake, ctx) = translated().await;
    let sources = look(&fake, &ctx).await;
    assert!((1..=3).contains(&sources), "{sources}");
    assert_eq!(look(&fake, &ctx).await, sources);
    version(&fake, &fake::secret(SOURCES, "keys-a"), "6");
    assert!(look(&fake, &ctx).await > sources + 1, "a source is another one");
    assert_eq!(look(&fake, &ctx).await, sources);
    version(&fake, HOSTED, "3");
    assert!(look(&fake, &ctx).await > sources, "it is edited");
    assert_eq!(look(&fake, &ctx).await, sources);
    ctx.quiet.forget_front("HostedCluster clusters/a");
    assert!(look(&fake, &ctx).await > sources, "its SecretEncryption has changed");
    assert_eq!(look(&fake, &ctx).await, sources);
    ctx.quiet.forget_fronts();
    assert!(look(&fake, &ctx).await > sources, "somebody's SecretEncryption is gone");
}

#[tokio::test]
async fn as_long_as_something_is_wrong_everything_is_looked_at() {
    let fake = world(json!({"type": "kms", "kms": {"provider": "Nobody"}}));
    version(&fake, HOSTED, "1");
    let ctx = fake.context();
    let first = look(&fake, &ctx).await;
    assert!(first > 0);
    assert!(look(&fake, &ctx).await > 0);
}
