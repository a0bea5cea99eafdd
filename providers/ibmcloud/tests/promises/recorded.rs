//! What IBM's own client has said to the fake, and what this provider says.

use sidekey_core::{Provider, Sealed};
use sidekey_e2e::fakes::ibm::{Conversation, State};

use crate::support::{PLAINTEXT, Stage, call};

#[tokio::test]
async fn requests_and_answers_have_the_form_that_ibms_own_client_has_proven() {
    let stage = Stage::new("recorded").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    client.decrypt(&sealed, &call()).await.unwrap();
    stage.fake.service().rotate(&stage.key);
    let moved = client.key_id().await.unwrap();
    client.decrypt(&sealed, &call()).await.unwrap();
    client.decrypt(&Sealed { key_id: moved, ..sealed.clone() }, &call()).await.unwrap_err();
    stage.fake.service().set_state(&stage.key, State::Suspended);
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
    client.decrypt(&sealed, &call()).await.unwrap_err();
    stage.fake.service().set_state(&stage.key, State::Destroyed);
    client.key_id().await.unwrap_err();
    client.decrypt(&sealed, &call()).await.unwrap_err();

    let (said, kept) = (Conversation::of(&stage.fake), Conversation::kept());
    let known = kept.shapes();
    assert!(known.len() > 15, "there is something to compare with");
    for shape in said.shapes() {
        assert!(known.contains(&shape), "IBM's own client has never said or heard this: {shape:#}");
    }
    for (operation, headers) in &said.headers {
        for name in kept.headers[operation].keys() {
            assert!(headers.contains_key(name), "{operation} lacks the header {name}");
        }
    }
}
