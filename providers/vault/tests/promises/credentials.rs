//! Every way to log in, and credentials that change under way.

use std::time::Duration;

use serde_json::{Value, json};
use sidekey_e2e::openbao::Agent;
use sidekey_e2e::openbao::jwt::Issuer;
use sidekey_e2e::wait::BROKEN;
use tonic::Code;

use crate::support::{PLAINTEXT, Pulse, Stage, calm, failed, quick, shared};

#[tokio::test]
async fn every_auth_method_serves() {
    let stage = Stage::new("methods").await;
    let (bao, policy) = (&stage.bao, [stage.name.as_str()]);
    stage.write("role-id", &format!("{}\n", stage.role.role_id));
    stage.write("token", &bao.make_token(&policy, &json!({"ttl": "1h"})).await.unwrap());

    let issuer = Issuer::new().unwrap();
    bao.enable_auth("jwt", "methods-jwt").await.unwrap();
    bao.jwt_role("methods-jwt", "kms", issuer.public_key(), "vault", "kms", &policy).await.unwrap();
    stage.write("jwt", &issuer.token("vault", "kms", Duration::from_secs(600)).unwrap());

    bao.enable_auth("cert", "methods-cert").await.unwrap();
    let authority = sidekey_e2e::pki::Authority::new("clients").unwrap();
    let files = authority.peer(stage.scratch().path(), "client", &["kms.sidekey.test"]).unwrap();
    bao.certificate_role("methods-cert", "kms", &authority.pem(), &policy).await.unwrap();

    bao.enable_auth("userpass", "methods-user").await.unwrap();
    let user = json!({"password": "s3cret-password", "token_policies": policy});
    bao.write("auth/methods-user/users/kms", &user).await.unwrap();
    stage.write("password", "s3cret-password\n");

    let file = |name: &str| stage.path(name);
    let ways = [
        json!({"appRole": {"mount": "methods", "roleIdFile": file("role-id"), "secretIdFile": file("secret-id")}}),
        json!({"jwt": {"mount": "methods-jwt", "role": "kms", "tokenFile": file("jwt")}}),
        json!({"cert": {"mount": "methods-cert", "role": "kms", "certFile": files.certificate, "keyFile": files.key}}),
        json!({"userpass": {"mount": "methods-user", "username": "kms", "passwordFile": file("password")}}),
        json!({"token": {"file": file("token")}}),
    ];
    let keys: Vec<Value> =
        (1..).zip(&ways).map(|(id, way)| stage.key_with(id, &stage.key, way)).collect();
    let mut served = stage.serve_document(&quick(&keys)).await;
    let sealed = served.round_trip().await;
    for id in 2..=5 {
        let kms = stage.kms(id).await;
        assert_eq!(&kms.decrypt(&sealed).await.unwrap()[..], PLAINTEXT, "key {id}");
        assert_eq!(kms.round_trip(PLAINTEXT).await.unwrap().key_id, sealed.key_id, "key {id}");
    }
    let status = served.plugin.status().await.unwrap().to_string();
    for secret in ["s3cret-password", "eyJ"] {
        assert!(!status.contains(secret), "{secret} is on /status");
    }
    assert!(served.plugin.process().log().unwrap().contains("logged in to Vault"));
}

#[tokio::test]
async fn an_agent_that_logs_in_by_itself_serves_over_its_socket() {
    let stage = Stage::new("agent").await;
    let dir = stage.scratch().path();
    let mut agent = Agent::start(dir, shared().await, "agent", &stage.role).await.unwrap();
    let mut key = stage.key_with(1, &stage.key, &json!({"agent": {}}));
    key["settings"] = json!({"address": format!("unix://{}", agent.socket().display())});
    let mut served = stage.serve_document(&quick(&[key])).await;
    let sealed = served.round_trip().await;
    agent.process().kill().unwrap();
    failed(served.kms.decrypt(&sealed).await, Code::Unavailable, &["agent.sock"]);
    served.wait_bad().await;
    agent.process().start().unwrap();
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.reads(&sealed).await;
}

#[tokio::test]
async fn a_service_account_token_is_followed_when_it_is_rotated() {
    let stage = Stage::new("rotated-jwt").await;
    let (bao, issuer) = (&stage.bao, Issuer::new().unwrap());
    bao.enable_auth("jwt", "jwt-rotated").await.unwrap();
    let policy = [stage.name.as_str()];
    bao.jwt_role("jwt-rotated", "kms", issuer.public_key(), "vault", "kms", &policy).await.unwrap();
    let token = |life| issuer.token("vault", "kms", Duration::from_secs(life)).unwrap();
    stage.write("jwt", &token(1));
    let way =
        json!({"jwt": {"mount": "jwt-rotated", "role": "kms", "tokenFile": stage.path("jwt")}});
    let mut served = stage.serve_document(&quick(&[stage.key_with(1, &stage.key, &way)])).await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    // As kubelet does it, long before the old one ends; then the old one has ended.
    stage.write("jwt", &token(600));
    served.logs("new files or settings are in use").await;
    bao.revoke_logins("jwt-rotated").await.unwrap();
    served.reads(&sealed).await;
    pulse.stop().await;
}

#[tokio::test]
async fn a_new_secret_id_is_taken_over_and_the_old_one_can_be_revoked_at_once() {
    let stage = Stage::new("renewed").await;
    let old = std::fs::read_to_string(stage.path("secret-id")).unwrap();
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    for times in 1..=3 {
        stage.write("secret-id", &format!("{}\n", stage.role.secret_id().await.unwrap()));
        served.logs_times("new files or settings are in use", times).await;
    }
    stage.role.revoke(&old).await.unwrap();
    // What it logged in with first is gone too: only the new secret-id can help.
    assert!(stage.bao.revoke_logins("renewed").await.unwrap() > 0);
    served.reads(&sealed).await;
    pulse.stop().await;
}

#[tokio::test]
async fn bad_credentials_leave_the_good_ones_in_use_and_are_told() {
    let stage = Stage::new("refused").await;
    let good = std::fs::read_to_string(stage.path("secret-id")).unwrap();
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    for (times, bad) in (1..).zip(["", "not-a-secret-id", "two\nlines"]) {
        stage.write("secret-id", bad);
        let refused = served.plugin.wait_status("it is refused", |status| {
            let refused = &status["keys"][0]["refused"];
            anyhow::ensure!(refused.is_object(), "{status}");
            Ok(refused.to_string())
        });
        let text = refused.await.unwrap();
        assert!(!text.contains("not-a-secret-id"), "{BROKEN}{text}");
        served.logs_times("the last good ones stay in use", times).await;
    }
    assert!(served.metric("kms_reloads_total", &[("result", "failure")]).await >= 1.0);
    stage.write("secret-id", &good);
    pulse.stop().await;
    assert!(!served.plugin.process().log().unwrap().contains("not-a-secret-id"));
}

#[tokio::test]
async fn a_revoked_token_is_replaced_inside_the_call() {
    let stage = Stage::new("revoked").await;
    let mut served = stage.serve_document(&calm(&[stage.app_role_key(1, &stage.key)])).await;
    served.wait_ok().await;
    let sealed = served.round_trip().await;
    for _ in 0..3 {
        assert!(stage.bao.revoke_logins("revoked").await.unwrap() > 0);
        served.reads(&sealed).await;
        assert!(stage.bao.revoke_logins("revoked").await.unwrap() > 0);
        served.round_trip().await;
    }
    // Many callers who are refused at once share one login.
    let before = stage.logins().await;
    let mut different = Vec::new();
    for _ in 0..16 {
        different.push(served.round_trip().await);
    }
    stage.bao.revoke_logins("revoked").await.unwrap();
    let calls = different.into_iter().map(|sealed| {
        let kms = served.kms.clone();
        tokio::spawn(async move { kms.decrypt(&sealed).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(&call.await.unwrap().unwrap()[..], PLAINTEXT);
    }
    assert_eq!(stage.logins().await - before, 1, "one login for all");
}

#[tokio::test]
async fn a_token_file_is_followed_and_a_revoked_token_is_named() {
    let stage = Stage::new("tokens").await;
    let policy = [stage.name.as_str()];
    let make = async || stage.bao.make_token(&policy, &json!({"ttl": "1h"})).await.unwrap();
    let first = make().await;
    stage.write("token", &first);
    let way = json!({"token": {"file": stage.path("token")}});
    let mut served = stage.serve_document(&quick(&[stage.key_with(1, &stage.key, &way)])).await;
    let sealed = served.round_trip().await;

    let pulse = Pulse::start(&served.kms, &sealed);
    let second = make().await;
    stage.write("token", &second);
    served.logs("new files or settings are in use").await;
    stage.bao.revoke_token(&first).await.unwrap();
    served.reads(&sealed).await;
    pulse.stop().await;

    stage.bao.revoke_token(&second).await.unwrap();
    failed(served.kms.decrypt(&sealed).await, Code::PermissionDenied, &[]);
    served.wait_bad_for(Code::PermissionDenied, "token").await;
    stage.write("token", &make().await);
    served.wait_ok().await;
    served.reads(&sealed).await;
}

#[tokio::test]
async fn a_lost_permission_is_named_and_heals_by_itself() {
    let stage = Stage::new("denied").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    stage.allow(&["read", "encrypt"]).await.unwrap();
    let words = ["denied/keys/kms", "decrypt"];
    failed(served.kms.decrypt(&sealed).await, Code::PermissionDenied, &words);
    served.wait_bad_for(Code::PermissionDenied, "update on denied/decrypt/kms").await;
    stage.allow(&["read", "decrypt"]).await.unwrap();
    served.wait_bad_for(Code::PermissionDenied, "update on denied/encrypt/kms").await;
    failed(served.kms.encrypt(PLAINTEXT).await, Code::PermissionDenied, &["encrypt"]);
    served.reads(&sealed).await;
    stage.allow(&["encrypt", "decrypt"]).await.unwrap();
    served.wait_bad_for(Code::PermissionDenied, "read on denied/keys/kms").await;
    served.reads(&sealed).await;
    stage.allow(&["read", "encrypt", "decrypt"]).await.unwrap();
    served.wait_ok().await;
    served.round_trip().await;
    // Refusals that no login mends do not make logins.
    assert!(stage.logins().await < 12, "{} logins", stage.logins().await);
    assert!(served.metric("kms_errors_total", &[("kind", "denied")]).await >= 2.0);
}

/// What the real server answers to a wrong credential, and to one that it does not let in.
#[tokio::test]
async fn a_wrong_password_and_a_wrong_address_are_told_apart() {
    let stage = Stage::new("let-in").await;
    stage.bao.enable_auth("userpass", "let-in-user").await.unwrap();
    let user = json!({"password": "right", "token_bound_cidrs": ["203.0.113.7/32"]});
    stage.bao.write("auth/let-in-user/users/kms", &user).await.unwrap();
    stage.write("password", "wrong");
    let way = json!({"userpass": {"mount": "let-in-user", "username": "kms", "passwordFile": stage.path("password")}});
    let mut served = stage.spawn(&quick(&[stage.key_with(1, &stage.key, &way)])).await;
    served.wait_bad_for(Code::PermissionDenied, "so that nothing is locked").await;
    served.wait_bad_for(Code::PermissionDenied, "wrong, expired or used up").await;
    stage.write("password", "right");
    served.wait_bad_for(Code::PermissionDenied, "from other addresses alone (CIDR)").await;
}

#[tokio::test]
async fn namespaces_are_kept_apart_and_login_may_be_in_another() {
    let server = shared().await;
    let team = server.root().make_namespace("team").await.unwrap();
    let role = json!({"token_ttl": "1h"});
    let stage = Stage::within(server, team.clone(), "spaces", &role).await.unwrap();
    let mut within = stage.app_role_key(1, &stage.key);
    within["kek"]["namespace"] = "team".into();

    // A parent's login for a child's key: its policy names the child's path.
    let root = server.root();
    let paths = ["keys", "encrypt", "decrypt"].map(|verb| format!("team/spaces/{verb}/kms"));
    let rules: [(&str, &[&str]); 3] =
        [(&paths[0], &["read"]), (&paths[1], &["update"]), (&paths[2], &["update"])];
    root.policy("team-kms", &rules).await.unwrap();
    let token = root.make_token(&["team-kms"], &json!({"ttl": "1h"})).await.unwrap();
    stage.write("token", &token);
    let way = json!({"token": {"file": stage.path("token")}});
    let mut apart = stage.key_with(2, &stage.key, &way);
    apart["kek"]["namespace"] = "/team/".into();
    apart["settings"]["authNamespace"] = "/".into();

    // The same names in the root are another key.
    let other = Stage::new("spaces").await;
    let stranger = {
        let mut key = other.app_role_key(3, &other.key);
        key["listen"] = stage.endpoint(3).into();
        key
    };
    let served = stage.serve_document(&quick(&[within, apart, stranger])).await;
    let sealed = served.round_trip().await;
    let (apart, stranger) = (stage.kms(2).await, stage.kms(3).await);
    assert_eq!(&apart.decrypt(&sealed).await.unwrap()[..], PLAINTEXT);
    assert_eq!(apart.round_trip(PLAINTEXT).await.unwrap().key_id, sealed.key_id);
    let theirs = stranger.round_trip(PLAINTEXT).await.unwrap();
    assert_ne!(theirs.key_id, sealed.key_id, "two keys have one name");
    assert!(stranger.decrypt(&sealed).await.is_err());
    let asked = server.audit().all().unwrap();
    let logins = asked.iter().filter(|asked| asked.path == "auth/spaces/login");
    let spaces: Vec<&str> = logins.map(|asked| asked.namespace.as_str()).collect();
    assert!(spaces.contains(&"team") && spaces.contains(&""), "{spaces:?}");
}
