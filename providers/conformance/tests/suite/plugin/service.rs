//! Status, Encrypt and Decrypt, sound but for the one defect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use aws_lc_rs::digest;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use sidekey_core::proto::v2::key_management_service_server::KeyManagementService;
use sidekey_core::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use tonic::{Request, Response, Status};

use super::Defect;
use super::life::{Connection, Life, Made};
use super::store::{Key, aad, hex, random};

/// Most bytes that are wrapped: what comes out must stay below 1024.
const PLAINTEXT_MAX: usize = 512;

/// The annotation whose value is random and authenticated.
const SALT: &str = "salt.test-kms.example";

/// The annotation that two defects forget to authenticate.
const EXTRA: &str = "extra.test-kms.example";

/// The service on one connection.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) life: Arc<Life>,
    pub(crate) connection: Arc<Connection>,
}

#[tonic::async_trait]
impl KeyManagementService for Service {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let life = &self.life;
        let count = self.connection.statuses.fetch_add(1, SeqCst) + 1;
        let seen = life.seen.swap(life.stored().len(), SeqCst);
        let mut status = StatusResponse {
            version: "v2".into(),
            healthz: "ok".into(),
            key_id: life.announced().id,
        };
        let young = life.generation == 0 && seen == 1;
        match life.defect {
            Some(Defect::StatusFails) => return Err(Status::unavailable("no")),
            Some(Defect::OldVersion) => status.version = "v1beta1".into(),
            Some(Defect::WaveringVersion) if count.is_multiple_of(20) => {
                status.version = "v2beta1".into()
            }
            Some(Defect::RestartMovesVersion) if life.generation > 0 => {
                status.version = "v2beta1".into();
            }
            Some(Defect::LoudHealthz) => status.healthz = "OK".into(),
            Some(Defect::FlappingKeyId) if young && count.is_multiple_of(15) => {
                status.key_id.push('~')
            }
            Some(Defect::SlowStatus) if young && count > 110 => {
                tokio::time::sleep(super::server::SLOW).await;
            }
            Some(Defect::CostlyStatus) => drop(life.calls.fetch_add(1, SeqCst)),
            Some(Defect::StumblesOverRotation) if seen < life.stored().len() => {
                return Err(Status::unavailable("reloading"));
            }
            _ if life.stumble.swap(false, SeqCst) => return Err(Status::internal("poisoned")),
            _ => {}
        }
        Ok(Response::new(status))
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        let life = &self.life;
        let mut plaintext = request.into_inner().plaintext.to_vec();
        life.calls.fetch_add(1, SeqCst);
        match life.defect {
            Some(Defect::EmptyIsInternal) if plaintext.is_empty() => {
                return Err(Status::internal("index out of range"));
            }
            Some(Defect::CutsPlaintext) if plaintext.len() == 1024 => plaintext.truncate(512),
            Some(Defect::Oversize) if plaintext.len() > 4 << 20 => plaintext.truncate(1),
            Some(Defect::ZerosAreNothing) if plaintext == [0; 32] => plaintext = vec![1; 32],
            _ => {}
        }
        if plaintext.is_empty() || plaintext.len() > PLAINTEXT_MAX {
            return Err(Status::invalid_argument("plaintext must have 1 to 512 bytes"));
        }
        Ok(Response::new(self.wrap(plaintext)))
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        let request = request.into_inner();
        self.life.calls.fetch_add(1, SeqCst);
        if let Some(answer) = self.hostile(&request).await? {
            return Ok(Response::new(DecryptResponse { plaintext: answer }));
        }
        let plaintext = self.unwrap(&request)?;
        let plaintext = self.remember(&request.ciphertext, plaintext).await?;
        Ok(Response::new(DecryptResponse { plaintext }))
    }
}

impl Service {
    fn wrap(&self, mut plaintext: Vec<u8>) -> EncryptResponse {
        let life = &self.life;
        let key = match life.defect {
            Some(Defect::EncryptsWithOldKey) => life.keys().swap_remove(0),
            _ => life.announced(),
        };
        let mut nonce = random();
        let mut annotations = BTreeMap::from([(SALT.to_owned(), Bytes::from_owner(random::<8>()))]);
        let mut annotate =
            |key: &str, value: Vec<u8>| annotations.insert(key.to_owned(), value.into());
        match life.defect {
            Some(Defect::LeakyAnnotation) => drop(annotate(EXTRA, hex(&plaintext).into())),
            Some(Defect::LeakyBase64) => {
                drop(annotate(EXTRA, BASE64_STANDARD.encode(&plaintext).into()))
            }
            Some(Defect::PlainAnnotationKey) => drop(annotate("version", vec![1])),
            Some(Defect::LargeAnnotation) => drop(annotate(EXTRA, vec![7; 33 * 1024])),
            Some(Defect::TrustsAnnotation | Defect::DefaultsAnnotation) => {
                drop(annotate(EXTRA, vec![0]))
            }
            Some(Defect::RepeatedNonce) => {
                annotate(SALT, vec![0; 8]);
                let hash = digest::digest(&digest::SHA256, &plaintext);
                nonce.copy_from_slice(&hash.as_ref()[..12]);
            }
            _ => {}
        }
        let whitening = random::<1>()[0];
        if life.has(Defect::MalleableCiphertext) {
            plaintext[0] ^= whitening;
        }
        let mut ciphertext = key.seal(nonce, &plaintext, &self.aad(&key, &annotations));
        match life.defect {
            Some(Defect::MalleableCiphertext) => ciphertext.push(whitening),
            Some(Defect::LongCiphertext) => ciphertext.resize(ciphertext.len() + 1024, 0),
            _ => {}
        }
        let ciphertext = Bytes::from(ciphertext);
        let made = Made { by: Arc::clone(&self.connection), uses: 0, plaintext: None };
        life.made.lock().unwrap().insert(ciphertext.clone(), made);
        let mut key_id = key.id;
        if life.has(Defect::AliasKeyId) && key.version == 1 {
            key_id.push_str("-alias");
        }
        EncryptResponse { ciphertext, key_id, annotations }
    }

    fn aad(&self, key: &Key, annotations: &BTreeMap<String, Bytes>) -> Vec<u8> {
        let mut annotations = annotations.clone();
        if let Some(Defect::TrustsAnnotation | Defect::DefaultsAnnotation) = self.life.defect {
            annotations.remove(EXTRA);
        }
        aad(key.id.trim_end_matches("-restarted"), &annotations)
    }

    /// The limits of the protocol, and the defects in the face of hostile input.
    async fn hostile(&self, request: &DecryptRequest) -> Result<Option<Bytes>, Status> {
        let DecryptRequest { ciphertext, key_id, annotations, .. } = request;
        let life = &self.life;
        let length = ciphertext.len();
        let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        match life.defect {
            Some(Defect::EmptyCiphertext) if length == 0 => return Ok(Some(Bytes::new())),
            Some(Defect::ShortCiphertext)
                if (1..32).contains(&length) && !life.related(ciphertext) =>
            {
                return Ok(Some(Bytes::new()));
            }
            Some(Defect::Garbage) if (32..=1024).contains(&length) && !life.related(ciphertext) => {
                return Ok(Some(Bytes::from_static(b"garbage")));
            }
            Some(Defect::LongCiphertextCrash) if length > 1024 => life.crash().await,
            Some(Defect::BarePrefixCrash) if key_id == "sidekey/" => life.crash().await,
            Some(Defect::EmptyAnnotationKeyCrash) if annotations.contains_key("") => {
                life.crash().await
            }
            Some(Defect::LongAnnotationStumble) if size > 1 << 20 => {
                life.stumble.store(true, SeqCst)
            }
            _ => {}
        }
        let limits = [
            (Defect::LongCiphertext, (1..=1024).contains(&length), "ciphertext"),
            (Defect::LargeAnnotation, size <= 32 * 1024, "annotations"),
        ];
        for (exempt, kept, what) in limits {
            if !kept && !life.has(exempt) {
                return Err(Status::invalid_argument(format!("{what}: outside of the limits")));
            }
        }
        Ok(None)
    }

    fn unwrap(&self, request: &DecryptRequest) -> Result<Bytes, Status> {
        let life = &self.life;
        let mut keys = life.named(&request.key_id)?;
        if life.has(Defect::DropsOldKey) {
            let seen = life.made.lock().unwrap();
            if let Some(plaintext) = seen.get(&request.ciphertext).and_then(|m| m.plaintext.clone())
            {
                return Ok(plaintext);
            }
            keys.retain(|key| key.version == life.stored().len());
        }
        let (ciphertext, turned) = self.peel(request)?;
        let mut opened = keys
            .iter()
            .find_map(|key| key.unseal(ciphertext, &self.aad(key, &request.annotations)))
            .ok_or_else(|| Status::invalid_argument("not what was encrypted"))?;
        if let Some(first) = opened.first_mut() {
            *first ^= turned;
        }
        Ok(opened.into())
    }

    /// What was sealed, and what some defects turn in the first byte of the plaintext.
    fn peel<'a>(&self, request: &'a DecryptRequest) -> Result<(&'a [u8], u8), Status> {
        let whole = &request.ciphertext[..];
        let extra = request.annotations.get(EXTRA).map(|value| &value[..]);
        let malformed = Status::invalid_argument("malformed");
        match self.life.defect {
            Some(Defect::MalleableCiphertext) => match whole.split_last() {
                Some((&last, sealed)) => Ok((sealed, last)),
                None => Err(malformed),
            },
            Some(Defect::LongCiphertext) => match whole.split_last_chunk() {
                Some((sealed, padding)) if *padding == [0; 1024] => Ok((sealed, 0)),
                _ => Err(malformed),
            },
            Some(Defect::ReadsPastTheEnd) if !self.life.made(whole) => {
                Ok((&whole[..whole.len() - 1], 1))
            }
            Some(Defect::TrustsAnnotation) => match extra {
                Some(&[value]) => Ok((whole, value)),
                _ => Err(malformed),
            },
            Some(Defect::DefaultsAnnotation) => match extra {
                Some([0]) => Ok((whole, 0)),
                Some(_) => Err(malformed),
                None => Ok((whole, 1)),
            },
            _ => Ok((whole, 0)),
        }
    }

    /// The defects that come with use.
    async fn remember(&self, ciphertext: &Bytes, plaintext: Bytes) -> Result<Bytes, Status> {
        let life = &self.life;
        let (uses, by) = {
            let mut made = life.made.lock().unwrap();
            let by = Arc::clone(&self.connection);
            let made =
                made.entry(ciphertext.clone()).or_insert(Made { by, uses: 0, plaintext: None });
            made.uses += 1;
            made.plaintext = Some(plaintext.clone());
            (made.uses, Arc::clone(&made.by))
        };
        let other = !Arc::ptr_eq(&by, &self.connection);
        match life.defect {
            Some(Defect::WearsOut) if life.generation == 0 && uses > 70 => {
                return Err(Status::resource_exhausted("worn out"));
            }
            Some(Defect::BoundToConnection) if other && !by.closes().await => {
                return Err(Status::permission_denied("not yours"));
            }
            Some(Defect::EndsWithConnection) if other && by.closes().await => {
                return Err(Status::permission_denied("its owner is gone"));
            }
            Some(Defect::MixesAnswers | Defect::RefusesHerd) => return self.storm(plaintext).await,
            _ => {}
        }
        Ok(plaintext)
    }

    /// Takes a moment, so that many callers are there at once, and breaks down under many.
    async fn storm(&self, plaintext: Bytes) -> Result<Bytes, Status> {
        let life = &self.life;
        let callers = life.in_flight.fetch_add(1, SeqCst) + 1;
        let last = std::mem::replace(&mut *life.last.lock().unwrap(), plaintext.clone());
        let same = last == plaintext;
        tokio::time::sleep(Duration::from_millis(20)).await;
        life.in_flight.fetch_sub(1, SeqCst);
        match life.defect {
            Some(Defect::MixesAnswers) if callers > 32 => Ok(last),
            Some(Defect::RefusesHerd) if callers > 32 && same => {
                Err(Status::resource_exhausted("one at a time"))
            }
            _ => Ok(plaintext),
        }
    }
}
