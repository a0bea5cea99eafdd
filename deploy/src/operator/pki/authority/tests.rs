use super::super::renewed;
use super::*;

fn names() -> Vec<String> {
    vec!["shim.sidekey".to_owned()]
}

fn days(count: u32) -> Duration {
    DAY * count
}

/// Whether a server with this certificate is believed by whoever trusts the bundle.
fn believed(authority: &Authority, cert: &str, now: SystemTime) -> bool {
    let der = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    verify_server_cert_signed_by_trust_anchor(
        &ParsedCertificate::try_from(&der).unwrap(),
        &authority.roots().unwrap(),
        &[],
        UnixTime::since_unix_epoch(since),
        aws_lc_rs::default_provider().signature_verification_algorithms.all,
    )
    .is_ok()
}

fn leaf(authority: &Authority, now: SystemTime) -> Issued {
    authority.issue(&names(), Purpose::Both, LEAF_LIFE, now).unwrap()
}

#[test]
fn a_new_ca_is_trusted_before_it_signs_and_the_old_one_until_it_expires() {
    let start = SystemTime::now();
    let mut authority = Authority::create(start).unwrap();
    let first = authority.bundle();
    let late = start + CA_LIFE / 3 * 2;
    assert!(authority.advance(late, false).unwrap());
    let both = authority.bundle();
    assert!(both.starts_with(&first) && both.len() > first.len());
    let next = authority.spreading().unwrap().to_owned();
    assert_eq!(format!("{first}{next}"), both);
    let old_leaf = leaf(&authority, late);
    assert!(authority.vouches(&old_leaf, &names(), late));
    // Not given to everybody: however long it takes, it does not sign.
    assert!(!authority.advance(late + days(30), false).unwrap());
    assert!(authority.advance(late + days(30), true).unwrap());
    let given = late + days(30);
    assert!(authority.spreading().is_none());
    assert!(!authority.advance(given + SPREAD / 2, true).unwrap());
    assert!(authority.vouches(&old_leaf, &names(), given));
    let now = given + SPREAD;
    assert!(authority.advance(now, true).unwrap());
    assert!(authority.bundle().starts_with(&next) && authority.bundle().contains(&first));
    // What the old one signed is still believed, and signed anew by the new one.
    assert!(believed(&authority, &old_leaf.cert, now));
    assert!(!authority.vouches(&old_leaf, &names(), now));
    assert!(authority.vouches(&leaf(&authority, now), &names(), now));
    assert!(!authority.advance(now + days(1), true).unwrap());
    assert!(authority.advance(start + CA_LIFE, true).unwrap());
    assert_eq!(authority.bundle(), next);
}

#[test]
fn every_step_survives_a_restart() {
    let start = SystemTime::now();
    let mut authority = Authority::create(start).unwrap();
    let late = start + CA_LIFE / 3 * 2;
    for (now, spread) in [(late, false), (late, true), (late + SPREAD, true)] {
        assert!(authority.advance(now, spread).unwrap());
        let kept = authority.files();
        let read = Authority::read(&kept).unwrap();
        assert_eq!(read.files(), kept);
        assert_eq!(read.bundle(), authority.bundle());
        assert!(read.vouches(&leaf(&authority, now), &names(), now));
        authority = read;
    }
}

#[test]
fn an_expired_ca_is_followed_at_once() {
    let start = SystemTime::now();
    let mut authority = Authority::create(start).unwrap();
    let first = authority.bundle();
    let now = start + CA_LIFE + days(1);
    assert!(authority.advance(now, false).unwrap());
    assert!(!authority.bundle().contains(&first));
    assert!(authority.vouches(&leaf(&authority, now), &names(), now));
}

#[test]
fn a_certificate_is_renewed_after_two_thirds_of_its_life_and_not_before() {
    let start = SystemTime::now();
    let mut authority = Authority::create(start).unwrap();
    assert!(!authority.advance(start + days(480), false).unwrap());
    let renew = |files, now| renewed(files, &authority, &names(), Purpose::Both, now).unwrap();
    let files = renew(BTreeMap::new(), start).unwrap();
    assert!(renew(files.clone(), start).is_none());
    assert!(renew(files.clone(), start + days(59)).is_none());
    let fresh = renew(files.clone(), start + days(61)).unwrap();
    assert_ne!(fresh[CERT_FILE], files[CERT_FILE]);
    assert_ne!(fresh[KEY_FILE], files[KEY_FILE]);
    assert!(renew(fresh, start + days(61)).is_none());
}

#[test]
fn another_bundle_alone_does_not_change_the_certificate() {
    let start = SystemTime::now();
    let mut authority = Authority::create(start).unwrap();
    let now = start + CA_LIFE / 3 * 2;
    let renew = |authority: &Authority, files| {
        renewed(files, authority, &names(), Purpose::Both, now).unwrap()
    };
    let files = renew(&authority, BTreeMap::new()).unwrap();
    authority.advance(now, false).unwrap();
    let wider = renew(&authority, files.clone()).unwrap();
    assert_eq!(wider[CERT_FILE], files[CERT_FILE]);
    assert_ne!(wider[CA_FILE], files[CA_FILE]);
    assert!(renew(&authority, wider).is_none());
}

#[test]
fn what_does_not_fit_is_made_anew() {
    let now = SystemTime::now();
    let authority = Authority::create(now).unwrap();
    let good = renewed(BTreeMap::new(), &authority, &names(), Purpose::Both, now).unwrap().unwrap();
    let foreign = leaf(&Authority::create(now).unwrap(), now);
    let other_name = authority.issue(&["x.y".to_owned()], Purpose::Both, LEAF_LIFE, now).unwrap();
    let spoilt = [
        (CERT_FILE, Secret::new(foreign.cert.into_bytes())),
        (CERT_FILE, Secret::new(other_name.cert.into_bytes())),
        (CERT_FILE, Secret::new(b"not PEM".to_vec())),
        (KEY_FILE, foreign.key),
        (KEY_FILE, Secret::new(Vec::new())),
    ];
    for (name, content) in spoilt {
        let mut files = good.clone();
        files.insert(name.to_owned(), content);
        assert!(renewed(files, &authority, &names(), Purpose::Both, now).unwrap().is_some());
    }
}

#[test]
fn a_damaged_ca_is_told_and_not_replaced() {
    let now = SystemTime::now();
    let (one, two) = (Authority::create(now).unwrap(), Authority::create(now).unwrap());
    for (name, content) in [
        (CA_FILE, Secret::new(b"nothing".to_vec())),
        (CA_FILE, two.files()[CA_FILE].clone()),
        (CA_KEY_FILE, Secret::new(b"nothing".to_vec())),
        (NEXT_KEY_FILE, two.files()[CA_KEY_FILE].clone()),
    ] {
        let mut files = one.files();
        files.insert(name.to_owned(), content);
        let Err(error) = Authority::read(&files) else { panic!("{name} was taken") };
        assert!(!error.report().contains("PRIVATE"), "{}", error.report());
    }
}

#[test]
fn nothing_outlives_its_ca() {
    let start = SystemTime::now();
    let authority = Authority::create(start).unwrap();
    let late = start + CA_LIFE - days(1);
    let issued = leaf(&authority, late);
    let (der, _) = issued.parts().unwrap();
    assert!(Certificate::parse(&der).unwrap().not_after <= authority.current.anchor.expires);
}
