//! Pods whose providers log in with tokens of the control plane.

use super::*;

#[tokio::test]
async fn an_idle_vendor_keeps_what_mints_its_token() {
    let mut wish = encryption("Template", &["aws"]);
    wish.spec.tokens = vec![crate::model::Token::of("aws")];
    let with = injected(&deployment(3), &wish);
    assert!(with.to_string().contains("sidekey-token-aws"));
    let mut proxied = wish.clone();
    proxied.spec.placement = crate::model::Placement::Proxy;
    let fake = cluster(&with, &three(&with));
    assert_eq!(ensure(&fake.context(), &proxied).await.unwrap(), [""; 0]);
    // A provider without its token cannot log in: to get it is a change of the pods.
    let mut bare = wish.clone();
    bare.spec.tokens.clear();
    let without = injected(&deployment(3), &bare);
    assert_eq!(next(&cluster(&without, &three(&without)), &wish).await.step, Some(Step::Write(0)));
}
