use proptest::prelude::*;

use super::*;

const OUTER: u32 = 0x42_0020;

fn written(value: Value<'_>) -> Vec<u8> {
    encode(OUTER, value).to_vec()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The examples of KMIP's specification, 9.1.2.
#[test]
fn the_examples_of_the_specification_are_written_and_read() {
    let integer = hex("42 00 20 | 02 | 00 00 00 04 | 00 00 00 08 00 00 00 00");
    assert_eq!(written(Value::Integer(8)), integer);
    assert_eq!(Item::parse(&integer).unwrap().number(), Some(8));
    let enumeration = hex("42 00 20 | 05 | 00 00 00 04 | 00 00 00 FF 00 00 00 00");
    assert_eq!(written(Value::Enumeration(255)), enumeration);
    assert_eq!(Item::parse(&enumeration).unwrap().number(), Some(255));
    let text = hex("42 00 20 | 07 | 00 00 00 0B | 48 65 6C 6C 6F 20 57 6F 72 6C 64 00 00 00 00 00");
    assert_eq!(written(Value::Text("Hello World")), text);
    assert_eq!(Item::parse(&text).unwrap().text(), Some("Hello World"));
    let bytes = hex("42 00 20 | 08 | 00 00 00 03 | 01 02 03 00 00 00 00 00");
    assert_eq!(written(Value::Bytes(&[1, 2, 3])), bytes);
    assert_eq!(Item::parse(&bytes).unwrap().bytes(), Some(&[1, 2, 3][..]));
    let structure =
        hex("42 00 20 | 01 | 00 00 00 20 | 42 00 04 | 05 | 00 00 00 04 | 00 00 00 FE 00 00 00 00 \
         | 42 00 05 | 02 | 00 00 00 04 | 00 00 00 FF 00 00 00 00");
    let inner = [(0x42_0004, Value::Enumeration(254)), (0x42_0005, Value::Integer(255))];
    assert_eq!(written(Value::Structure(&inner)), structure);
    let parsed = Item::parse(&structure).unwrap();
    assert_eq!(parsed.find(0x42_0004).and_then(Item::number), Some(254));
    assert_eq!(parsed.find(0x42_0005).and_then(Item::number), Some(255));
    assert_eq!((parsed.find(0x42_0006), parsed.items().count()), (None, 2));
    // Of types that we do not write.
    for (value, fits) in [
        ("42 00 20 | 03 | 00 00 00 08 | 01 B6 9B 4B A5 74 92 00", true),
        ("42 00 20 | 04 | 00 00 00 10 | 00 00 00 00 03 FD 35 EB 6B C2 DF 46 18 08 00 00", true),
        ("42 00 20 | 06 | 00 00 00 08 | 00 00 00 00 00 00 00 01", true),
        ("42 00 20 | 09 | 00 00 00 08 | 00 00 00 00 47 DA 67 F8", true),
        ("42 00 20 | 0A | 00 00 00 04 | 00 0D 2F 00 00 00 00 00", true),
        ("42 00 20 | 04 | 00 00 00 00", false),
        ("42 00 20 | 03 | 00 00 00 04 | 00 00 00 00 00 00 00 00", false),
        ("42 00 20 | 02 | 00 00 00 08 | 00 00 00 00 00 00 00 00", false),
        ("42 00 20 | 00 | 00 00 00 00", false),
        ("42 00 20 | 0B | 00 00 00 08 | 00 00 00 00 00 00 00 00", false),
    ] {
        assert_eq!(Item::parse(&hex(value)).is_ok(), fits, "{value}");
    }
}

#[test]
fn a_value_is_of_its_own_type_alone() {
    let text = written(Value::Text("1234"));
    let text = Item::parse(&text).unwrap();
    assert_eq!((text.number(), text.bytes()), (None, None));
    assert!(!text.is_structure() && text.items().next().is_none());
    let no_text = hex("42 00 20 | 07 | 00 00 00 02 | C3 28 00 00 00 00 00 00");
    assert_eq!(Item::parse(&no_text).unwrap().text(), None);
}

#[test]
fn what_is_nested_too_deeply_is_refused_before_the_stack_ends() {
    let nested = |depth: usize| {
        let mut bytes = Vec::new();
        for level in (0..depth).rev() {
            bytes.extend_from_slice(&hex("42 00 20 01"));
            bytes.extend_from_slice(&(8 * level as u32).to_be_bytes());
        }
        bytes
    };
    assert!(Item::parse(&nested(MAX_DEPTH + 1)).is_ok());
    assert_eq!(Item::parse(&nested(MAX_DEPTH + 2)), Err("it is nested too deeply"));
    assert_eq!(Item::parse(&nested(100_000)), Err("it is nested too deeply"));
}

#[test]
fn a_length_beyond_the_end_is_refused_whatever_it_says() {
    for length in [1_u32, 9, 0x7fff_ffff, 0xffff_fff8, 0xffff_ffff] {
        for kind in [STRUCTURE, TEXT, BYTES, 4] {
            let mut bytes = hex("42 00 20");
            bytes.push(kind);
            bytes.extend_from_slice(&length.to_be_bytes());
            assert!(Item::parse(&bytes).is_err(), "{kind} {length}");
        }
    }
}

/// What a message may be made of.
#[derive(Clone, Debug)]
enum Tree {
    Number(i32),
    Word(u32),
    Text(String),
    Bytes(Vec<u8>),
    Inner(Vec<Tree>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(Tree::Number),
        any::<u32>().prop_map(Tree::Word),
        ".{0,20}".prop_map(Tree::Text),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Tree::Bytes),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        proptest::collection::vec(inner, 0..6).prop_map(Tree::Inner)
    })
}

fn written_tree(tree: &Tree) -> Vec<u8> {
    match tree {
        Tree::Number(value) => written(Value::Integer(*value)),
        Tree::Word(value) => written(Value::Enumeration(*value)),
        Tree::Text(value) => written(Value::Text(value)),
        Tree::Bytes(value) => written(Value::Bytes(value)),
        Tree::Inner(all) => {
            let inner: Vec<u8> = all.iter().flat_map(written_tree).collect();
            let mut bytes = written(Value::Structure(&[]));
            bytes[4..].copy_from_slice(&u32::try_from(inner.len()).unwrap().to_be_bytes());
            [bytes, inner].concat()
        }
    }
}

fn is(tree: &Tree, item: Item<'_>) -> bool {
    match tree {
        Tree::Number(value) => item.number() == Some(*value as u32),
        Tree::Word(value) => item.number() == Some(*value),
        Tree::Text(value) => item.text() == Some(value),
        Tree::Bytes(value) => item.bytes() == Some(value),
        Tree::Inner(all) => {
            let items: Vec<_> = item.items().collect();
            item.is_structure()
                && items.len() == all.len()
                && all.iter().zip(items).all(|(one, item)| is(one, item))
        }
    }
}

/// Everything that can be asked of what was accepted.
fn walk(item: Item<'_>) -> usize {
    let _ = (item.number(), item.text(), item.bytes());
    1 + item.items().map(walk).sum::<usize>()
}

proptest! {
    #[test]
    fn what_is_written_is_read(tree in tree()) {
        let bytes = written_tree(&tree);
        prop_assert_eq!(bytes.len() % 8, 0);
        prop_assert!(is(&tree, Item::parse(&bytes).unwrap()));
    }

    #[test]
    fn what_breaks_off_or_goes_on_is_refused(tree in tree(), at in any::<prop::sample::Index>()) {
        let bytes = written_tree(&tree);
        prop_assert!(Item::parse(&bytes[..at.index(bytes.len())]).is_err());
        prop_assert!(Item::parse(&[&bytes[..], &[0]].concat()).is_err());
        prop_assert!(Item::parse(&[&bytes[..], &bytes[..]].concat()).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(item) = Item::parse(&bytes) {
            prop_assert!(walk(item) <= bytes.len() / 8);
        }
    }

    #[test]
    fn no_change_of_a_message_makes_it_panic(
        tree in tree(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = written_tree(&tree);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(item) = Item::parse(&bytes) {
            prop_assert!(walk(item) <= bytes.len() / 8);
        }
    }
}
