use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256};
use aws_lc_rs::signature::{UnparsedPublicKey, VerificationAlgorithm};
use serde_json::json;
use sidekey_core::tls::Unusable;
use sidekey_core::{Files, sha256};

use super::*;
use crate::http::{Limits, Proxy};
use crate::lease::{LOCKOUT, Lease};
use crate::testing::{Fake, Reply, takes_no_bad_answer};
use crate::tls::Trust;

fn endpoint(fake: &Fake, form: Form) -> TokenEndpoint {
    let dir = tempfile::tempdir().unwrap();
    let path = fake.write_ca(dir.path()).unwrap();
    let files = Files::read([path.as_path()]).unwrap();
    let trust = Trust::new(Some(&path), Unusable::Refuse, None, &files, "caFile").unwrap();
    let http = Http::new(&trust, Proxy::default(), Limits::default());
    let address = Address::parse(&fake.url()).unwrap();
    TokenEndpoint { http, address, path: "/token".into(), form, codes: &[] }
}

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn key() -> (RsaKeyPair, Vec<u8>) {
    let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let der = key.as_der().unwrap();
    (key, der.as_ref().to_vec())
}

#[tokio::test]
async fn each_form_is_sent_as_its_endpoint_asks_for_it() {
    let fake = Fake::https(|seen| {
        let life = if seen.method == Method::GET { json!("120") } else { json!(3600) };
        Reply::json(
            200,
            &json!({"access_token": "tok", "token_type": "Bearer", "expires_in": life}),
        )
    })
    .await;
    let scope = "https://kms/.default";
    let (_, der) = key();
    let signer = || Signer::new(&der, "RS256", json!({}), json!({"iss": "me"})).unwrap();
    let forms = [
        (
            Form::secret("me", secret("s+"), scope),
            "grant_type=client_credentials&client_secret=s%2B&client_id=me&scope=https%3A%2F%2Fkms%2F.default",
        ),
        (Form::assertion("me", Field::Secret(secret("jwt\n")), scope), "client_assertion=jwt&"),
        (Form::assertion("me", Field::Signed(signer()), scope), "client_assertion=eyJ"),
        (Form::jwt_bearer(signer()), "grant-type%3Ajwt-bearer&assertion=eyJ"),
        (Form::api_key("urn:ibm:apikey", secret("k")), "grant_type=urn%3Aibm%3Aapikey&apikey=k"),
        (
            Form::exchange(secret("sub"), "urn:jwt", "//iam", scope),
            "subject_token=sub&subject_token_type=urn%3Ajwt&audience=%2F%2Fiam",
        ),
        (Form::Get("metadata-flavor", "Google"), ""),
    ];
    for (form, expected) in forms {
        let is_metadata = matches!(form, Form::Get(..));
        let grant = endpoint(&fake, form).fetch(soon()).await.unwrap();
        assert_eq!(grant.item, "Bearer tok");
        assert!(grant.item.is_sensitive());
        let seen = fake.seen().pop().unwrap();
        let body = String::from_utf8(seen.body.to_vec()).unwrap();
        assert!(body.contains(expected), "{body}");
        let (life, method) = if is_metadata { (120, "GET") } else { (3600, "POST") };
        assert_eq!(grant.life, Some(Duration::from_secs(life)));
        assert_eq!(seen.method, method);
        assert_eq!(seen.headers.contains_key("metadata-flavor"), is_metadata);
    }
}

#[test]
fn a_signed_jwt_can_be_verified_and_says_who_for_whom_and_until_when() {
    let (key, der) = key();
    let algorithms: [(&str, &'static dyn VerificationAlgorithm); 2] =
        [("RS256", &RSA_PKCS1_2048_8192_SHA256), ("PS256", &RSA_PSS_2048_8192_SHA256)];
    for (name, algorithm) in algorithms {
        let head = json!({"x5t#S256": "thumb"});
        let signer = Signer::new(&der, name, head, json!({"iss": "me", "aud": "you"})).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let jwt = signer.sign(now).unwrap();
        let jwt = jwt.as_text().unwrap();
        let (text, signature) = jwt.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let public = UnparsedPublicKey::new(algorithm, key.public_key().as_ref());
        public.verify(text.as_bytes(), &signature).unwrap();
        let part = |index| -> Value {
            let part = text.split('.').nth(index).unwrap();
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
        };
        assert_eq!((&part(0)["alg"], &part(0)["x5t#S256"]), (&json!(name), &json!("thumb")));
        assert_eq!((&part(1)["iss"], &part(1)["aud"]), (&json!("me"), &json!("you")));
        assert_eq!(part(1)["exp"], 1_800_000_000 + ASSERTED);
        assert_ne!(signer.sign(now).unwrap().as_text(), Some(jwt), "each has an id of its own");
    }
    assert_eq!(
        Signer::new(b"no key", "RS256", json!({}), json!({})).err().unwrap().kind(),
        Kind::Config
    );
}

#[tokio::test]
async fn a_refusal_of_the_credential_is_told_by_its_code_and_sent_once() {
    let fake = Fake::https(|_| {
        let text = "AADSTS7000215: Invalid client secret provided.";
        Reply::json(401, &json!({"error": "invalid_client", "error_description": text}))
    })
    .await;
    let form = Form::api_key("g", secret("hunter2"));
    let lease = Lease::new(endpoint(&fake, form), sha256(b"oauth-refused"), LOCKOUT);
    for _ in 0..5 {
        let error = lease.get(soon()).await.err().unwrap();
        assert!(error.kind() == Kind::Denied && error.is_lasting(), "{}", error.report());
        assert!(error.report().contains("AADSTS7000215") && !error.report().contains("hunter2"));
    }
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn an_endpoint_that_asks_to_be_left_alone_is_not_asked_before() {
    for status in [429, 503] {
        let fake = Fake::https(|_| Reply::json(200, &json!({"access_token": "t"}))).await;
        let form = Form::Get("metadata", "true");
        let lease = Lease::new(
            endpoint(&fake, form),
            sha256(format!("left alone {status}").as_bytes()),
            LOCKOUT,
        );
        fake.answer(Reply::json(status, &json!({})).with("retry-after", "30"));
        let error = lease.get(soon()).await.err().unwrap();
        assert!(error.report().contains("left alone"), "{}", error.report());
        // More than the longest pause between attempts of ours.
        for (seconds, asked) in [(29, 1), (15, 2)] {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(seconds)).await;
            tokio::time::resume();
            assert_eq!((lease.get(soon()).await.is_ok(), fake.seen().len()), (asked == 2, asked));
        }
    }
}

#[tokio::test]
async fn a_page_in_the_place_of_a_token_endpoint_is_no_refusal_of_the_credential() {
    let fake = Fake::https(|_| Reply::json(200, &json!({"access_token": "t"}))).await;
    let endpoint = endpoint(&fake, Form::api_key("g", secret("k")));
    for status in [401, 403] {
        for body in ["<html>log in</html>", "", "{}"] {
            fake.answer(Reply { body: body.into(), ..Reply::json(status, &json!({})) });
            let error = endpoint.fetch(soon()).await.err().unwrap();
            assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
            assert!(error.hint().unwrap().contains("stands before it"), "{}", error.report());
        }
        let google = json!({"error": {"code": status, "status": "PERMISSION_DENIED"}});
        fake.answer(Reply::json(status, &google));
        assert_eq!(endpoint.fetch(soon()).await.err().unwrap().kind(), Kind::Denied);
    }
}

#[tokio::test]
async fn bad_answers_of_a_token_endpoint_change_nothing() {
    let fake = Fake::https(|_| Reply::json(200, &json!({"access_token": "t"}))).await;
    let endpoint = endpoint(&fake, Form::api_key("g", secret("k")));
    takes_no_bad_answer(&fake, || {}, async || endpoint.fetch(soon()).await.map(drop)).await;
}
