//! Calls to a plugin, as kube-apiserver makes them.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aws_lc_rs::rand;
use bytes::Bytes;
use sidekey_core::client::Connection;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, EncryptResponse, StatusRequest};

use super::drive::Operation;
use super::fake::Recorded;
use super::reach::Reach;
use crate::http::HttpClient;

/// What kube-apiserver encrypts: a data encryption key, or the seed of many.
const PLAINTEXT: usize = 32;

/// kube-apiserver's own time limit for a call.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A plugin, and ciphertexts for it.
#[derive(Clone)]
pub(super) struct Plugin {
    client: KeyManagementServiceClient<Connection>,
    pool: Rc<[Wrapped]>,
}

/// A wrapped key and what it unwraps to.
#[derive(Debug)]
struct Wrapped {
    answer: EncryptResponse,
    plaintext: Bytes,
}

impl Plugin {
    /// Wraps `size` different keys and unwraps each once, to be sure of them. Where there is a
    /// fake behind the plugin, what it was sent for each Decrypt is given as well.
    pub(super) async fn prepare(
        reach: &Reach,
        size: usize,
        fake: Option<SocketAddr>,
    ) -> Result<(Self, Vec<Recorded>)> {
        let mut client = reach.connect().await?;
        let fake = fake.map(HttpClient::plain);
        let (mut pool, mut records) = (Vec::with_capacity(size), Vec::new());
        for number in 0..size as u64 {
            let plaintext = random()?;
            let request = EncryptRequest { plaintext: plaintext.clone(), uid: uid(number) };
            let answer = client.encrypt(timed(request)).await.context("Encrypt")?.into_inner();
            let request = decrypt_request(&answer, uid(number));
            let back = client.decrypt(timed(request)).await.context("Decrypt")?.into_inner();
            ensure!(
                back.plaintext == plaintext,
                "Decrypt did not give back what Encrypt was given"
            );
            if let Some(fake) = &fake {
                records.push(Recorded::last(fake).await?);
            }
            pool.push(Wrapped { answer, plaintext });
        }
        Ok((Self { client, pool: pool.into() }, records))
    }

    /// Calls that the preparation took: each entry of the pool was encrypted and decrypted once.
    pub(super) fn prepared(&self) -> u64 {
        2 * self.pool.len() as u64
    }

    /// One call, whose answer must be right.
    pub(super) async fn call(&mut self, operation: Operation, number: u64) -> Result<()> {
        match operation {
            Operation::Status => {
                let status = self.client.status(timed(StatusRequest {})).await?.into_inner();
                ensure!(status.healthz == "ok", "Status says {:?}", status.healthz);
            }
            Operation::Encrypt => {
                let plaintext = random()?;
                self.client.encrypt(timed(EncryptRequest { plaintext, uid: uid(number) })).await?;
            }
            Operation::Decrypt => {
                let index = usize::try_from(number).unwrap_or_default() % self.pool.len();
                let wrapped = &self.pool[index];
                let request = decrypt_request(&wrapped.answer, uid(number));
                let answer = self.client.decrypt(timed(request)).await?.into_inner();
                ensure!(answer.plaintext == wrapped.plaintext, "a wrong plaintext was answered");
            }
        }
        Ok(())
    }
}

fn decrypt_request(answer: &EncryptResponse, uid: String) -> DecryptRequest {
    let EncryptResponse { ciphertext, key_id, annotations } = answer.clone();
    DecryptRequest { ciphertext, uid, key_id, annotations }
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(TIMEOUT);
    request
}

fn random() -> Result<Bytes> {
    let mut bytes = [0; PLAINTEXT];
    rand::fill(&mut bytes).ok().context("no randomness")?;
    Ok(Bytes::copy_from_slice(&bytes))
}

/// As long as the UUIDs that kube-apiserver sends.
fn uid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}
