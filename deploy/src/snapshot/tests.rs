#![allow(clippy::unwrap_used)]
use std::io::Write;

use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::*;
use crate::census::{Kind, Row};

const PAGE: usize = 4096;
const CBC: &[u8] = b"k8s:enc:aescbc:v1:old:x";
const CLEAR: &[u8] = b"k8s\0x";

/// What etcd stores for one revision.
struct Entry {
    revision: u64,
    key: &'static str,
    value: Option<Vec<u8>>,
}

fn put(revision: u64, key: &'static str, value: &[u8]) -> Entry {
    Entry { revision, key, value: Some(value.to_vec()) }
}

fn delete(revision: u64, key: &'static str) -> Entry {
    Entry { revision, key, value: None }
}

fn pair(entry: &Entry) -> (Vec<u8>, Vec<u8>) {
    let mut key = entry.revision.to_be_bytes().to_vec();
    key.push(b'_');
    key.extend(0_u64.to_be_bytes());
    if entry.value.is_none() {
        key.push(b't');
    }
    let value = KeyValue {
        key: Bytes::from_static(entry.key.as_bytes()),
        mod_revision: entry.revision.try_into().unwrap(),
        value: entry.value.clone().unwrap_or_default().into(),
    };
    (key, value.encode_to_vec())
}

/// A page of elements, over as many pages as they need.
fn leaf(number: u64, flags: u32, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut position = pairs.len() * 16;
    for (index, (key, value)) in pairs.iter().enumerate() {
        body.extend(flags.to_le_bytes());
        body.extend(u32::try_from(position - index * 16).unwrap().to_le_bytes());
        body.extend(u32::try_from(key.len()).unwrap().to_le_bytes());
        body.extend(u32::try_from(value.len()).unwrap().to_le_bytes());
        position += key.len() + value.len();
    }
    for (key, value) in pairs {
        body.extend(key);
        body.extend(value);
    }
    page(number, 2, pairs.len(), body)
}

fn branch(number: u64, children: &[u64]) -> Vec<u8> {
    let mut body = Vec::new();
    for child in children {
        body.extend([0; 8]);
        body.extend(child.to_le_bytes());
    }
    page(number, 1, children.len(), body)
}

fn page(number: u64, flags: u16, count: usize, body: Vec<u8>) -> Vec<u8> {
    let over = (16 + body.len()).div_ceil(PAGE) - 1;
    let mut page = number.to_le_bytes().to_vec();
    page.extend(flags.to_le_bytes());
    page.extend(u16::try_from(count).unwrap().to_le_bytes());
    page.extend(u32::try_from(over).unwrap().to_le_bytes());
    page.extend(body);
    page.resize((over + 1) * PAGE, 0);
    page
}

fn meta(number: u64, root: u64, end: u64, transaction: u64) -> Vec<u8> {
    let mut meta = Vec::new();
    for value in [0xED0C_DAED_u32, 2, u32::try_from(PAGE).unwrap(), 0] {
        meta.extend(value.to_le_bytes());
    }
    for value in [root, 0, 2, end, transaction] {
        meta.extend(value.to_le_bytes());
    }
    let hash = meta.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    meta.extend(hash.to_le_bytes());
    page(number, 4, 0, meta)
}

/// A database whose leaves hold the given entries, under one branch.
fn database(leaves: &[Vec<Entry>]) -> Vec<u8> {
    let (root, top) = (3, 4);
    let mut pages = Vec::new();
    let (mut next, mut children) = (top + 1, Vec::new());
    for entries in leaves {
        let pairs: Vec<_> = entries.iter().map(pair).collect();
        let bytes = leaf(next, 0, &pairs);
        children.push(next);
        next += (bytes.len() / PAGE) as u64;
        pages.push(bytes);
    }
    let bucket = [u64::to_le_bytes(top), [0; 8]].concat();
    let mut file = meta(0, root, next, 7);
    // Older, and of nothing.
    file.extend(meta(1, 99, next, 6));
    file.extend(page(2, 16, 0, Vec::new()));
    file.extend(leaf(root, 1, &[(b"key".to_vec(), bucket)]));
    file.extend(branch(top, &children));
    file.extend(pages.concat());
    file
}

fn sample() -> Vec<u8> {
    database(&[
        vec![
            put(2, "/registry/secrets/a/one", CBC),
            put(3, "/registry/secrets/a/two", CBC),
            put(4, "/registry/secrets/a/gone", CBC),
        ],
        vec![put(5, "/registry/secrets/a/large", &[CLEAR, &[0; 9000]].concat())],
        vec![
            put(6, "/registry/secrets/a/two", CLEAR),
            delete(7, "/registry/secrets/a/gone"),
            put(8, "/calico/x", b"y"),
        ],
    ])
}

fn counted(bytes: &[u8]) -> Result<(Census, Integrity), Error> {
    counted_with(bytes, &Options::default())
}

fn counted_with(bytes: &[u8], options: &Options) -> Result<(Census, Integrity), Error> {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    count(file.path(), options, &mut |_| {})
}

fn shown(rows: &[Row]) -> Vec<String> {
    let show = |row: &Row| format!("{} {} {}", row.resource, row.under.kind.label(), row.objects);
    rows.iter().map(show).collect()
}

fn problem(bytes: &[u8]) -> String {
    counted(bytes).unwrap_err().report()
}

#[test]
fn the_latest_value_of_each_key_counts_and_older_ones_are_history() {
    let (census, integrity) = counted(&sample()).unwrap();
    assert_eq!(shown(&census.rows), ["secrets aescbc 1", "secrets clear 2"]);
    assert_eq!(shown(&census.history), ["secrets aescbc 2"]);
    assert_eq!((census.revision, census.other), (8, 1));
    assert_eq!(integrity, Integrity::Unverified);
}

#[test]
fn a_prefix_that_the_snapshot_has_nothing_under_leaves_a_doubt() {
    let doubt = |prefix: &str, resource: &str| {
        let (prefixes, resources) = (vec![prefix.to_owned()], vec![resource.parse().unwrap()]);
        let options = Options { prefixes, resources, ..Options::default() };
        counted_with(&sample(), &options).unwrap().0.doubt()
    };
    assert_eq!(doubt("/registry", "secrets"), None);
    assert_eq!(doubt("/registry", "configmaps"), None, "there may be none of a resource");
    let why = doubt("/wrong", "secrets").unwrap();
    assert!(why.contains("/wrong") && why.contains("--etcd-prefix"), "{why}");
    let empty = database(&[vec![put(2, "/calico/x", b"y")]]);
    assert!(counted(&empty).unwrap().0.doubt().is_some());
}

#[test]
fn a_bucket_so_small_that_it_lies_in_its_parent_is_read() {
    let pairs = [pair(&put(2, "/registry/secrets/a/one", CBC))];
    let inline = &leaf(0, 0, &pairs)[..200];
    let bucket = [&[0; 16][..], inline].concat();
    let mut file = [meta(0, 3, 4, 1), meta(1, 3, 4, 2), page(2, 16, 0, Vec::new())].concat();
    file.extend(leaf(3, 1, &[(b"key".to_vec(), bucket)]));
    let (census, _) = counted(&file).unwrap();
    assert_eq!(shown(&census.rows), ["secrets aescbc 1"]);
}

#[test]
fn the_checksum_of_a_snapshot_is_verified() {
    let mut file = sample();
    file.extend(sha256(&file));
    assert_eq!(counted(&file).unwrap().1, Integrity::Verified);
    file[5 * PAGE + 100] ^= 1;
    assert!(problem(&file).contains("checksum is wrong"));
}

#[test]
fn a_torn_meta_page_leaves_the_other_one() {
    let mut file = sample();
    // The older one leads to a page that does not exist.
    file[16 + 48] ^= 1;
    assert!(problem(&file).contains("outside of the file"));
    let mut file = [sample(), Vec::new()].concat();
    file[PAGE..2 * PAGE].fill(0);
    assert!(counted(&file).is_ok());
}

#[test]
fn what_is_cut_off_or_foreign_is_an_error() {
    let file = sample();
    for length in [0, 1, 100, PAGE, 3 * PAGE, file.len() - PAGE, file.len() - 1] {
        let said = problem(&file[..length]);
        let told = ["cut off", "no database", "no snapshot"].iter().any(|why| said.contains(why));
        assert!(told, "{length}: {said}");
    }
    assert!(problem(&[7; 8192]).contains("no database of etcd"));
    let missing = count(Path::new("/nonexistent"), &Options::default(), &mut |_| {});
    assert!(missing.unwrap_err().report().contains("cannot be read"));
}

#[test]
fn pages_in_a_circle_end() {
    let mut file = sample();
    // The branch has itself as its last child, which is read first.
    file[4 * PAGE + 56..4 * PAGE + 64].copy_from_slice(&4_u64.to_le_bytes());
    let said = problem(&file);
    assert!(said.contains("circle") || said.contains("too deep"), "{said}");
}

#[test]
fn revisions_out_of_order_are_damage() {
    let file = database(&[vec![put(5, "/registry/secrets/a/one", CBC)], vec![put(4, "/x", CBC)]]);
    assert!(problem(&file).contains("out of order"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_damage_makes_it_panic_or_find_more_than_there_is(
        damage in prop::collection::vec((0_usize..7 * PAGE, any::<u8>()), 1..6),
        cut in prop::option::of(0_usize..30_000),
    ) {
        let mut file = sample();
        // Where something is: the first bytes of each page.
        for (at, byte) in damage {
            let at = at / PAGE * PAGE + at % 256;
            file[at] = byte;
        }
        file.truncate(cut.unwrap_or(usize::MAX));
        if let Ok((census, _)) = counted(&file) {
            let all = census.objects() + crate::census::total(&census.history) + census.other;
            prop_assert!(all <= 8, "{census:?}");
            prop_assert!(census.rows.iter().all(|row| row.under.kind != Kind::KmsV2));
        }
    }
}
