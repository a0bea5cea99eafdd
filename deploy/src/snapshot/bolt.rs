//! A reader of bbolt's files, the form of etcd's database: a tree of pages, and two meta pages of
//! which the newer sound one counts.
//!
//! It reads with `pread` and believes nothing: every offset is checked, no page is read twice,
//! and a damaged file is an error.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::Error;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const PAGE_HEADER: usize = 16;
const META: usize = 64;
const ELEMENT: usize = 16;
const BUCKET_HEADER: usize = 16;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const IS_BUCKET: u32 = 0x01;
/// Deeper than any tree of pages can be.
const MAX_DEPTH: usize = 32;
/// More than the largest values of etcd need, several of them on one page.
const MAX_RUN: u64 = 256 * 1024 * 1024;

/// An open file.
#[derive(Debug)]
pub(super) struct Bolt<'a> {
    file: &'a File,
    size: u64,
    meta: Meta,
    /// Pages that may still be read in this walk.
    budget: Cell<u64>,
}

/// Where a bucket's tree begins.
#[derive(Debug)]
pub(super) enum Bucket {
    /// At that page.
    Page(u64),
    /// In these bytes: it is small.
    Inline(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    page_size: u64,
    root: u64,
    /// The first page that is not used.
    end: u64,
    transaction: u64,
}

/// One element of a leaf.
struct Leaf<'a> {
    is_bucket: bool,
    key: &'a [u8],
    value: &'a [u8],
}

/// A page and what follows it.
struct Page<'a> {
    bytes: &'a [u8],
    flags: u16,
    count: usize,
}

impl<'a> Bolt<'a> {
    /// Reads the meta pages.
    pub(super) fn open(file: &'a File, size: u64) -> Result<Self, Error> {
        let meta = newest_meta(file, size)?;
        Ok(Self { file, size, meta, budget: Cell::new(0) })
    }

    /// A bucket of the root; buckets in buckets are not looked into.
    pub(super) fn bucket(&self, name: &[u8]) -> Result<Option<Bucket>, Error> {
        let mut found = None;
        self.refill();
        self.walk(self.meta.root, 0, &mut |leaf| {
            if leaf.is_bucket && leaf.key == name {
                found = Some(Bucket::read(leaf.value)?);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Visits all keys and values of a bucket, from the last to the first.
    pub(super) fn descend(
        &self,
        bucket: &Bucket,
        visit: &mut impl FnMut(&[u8], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut each = |leaf: Leaf<'_>| match leaf.is_bucket {
            true => Ok(()),
            false => visit(leaf.key, leaf.value),
        };
        self.refill();
        match bucket {
            Bucket::Page(page) => self.walk(*page, 0, &mut each),
            Bucket::Inline(bytes) => self.elements(&Page::read(bytes)?, 0, &mut each),
        }
    }

    /// An error if somebody wrote to the file since it was opened: then pages of different times
    /// may have been read.
    pub(super) fn check_unchanged(&self) -> Result<(), Error> {
        match newest_meta(self.file, self.size)? == self.meta {
            true => Ok(()),
            false => Err(Error::failed("it was written to meanwhile: is it a running etcd's?")),
        }
    }

    fn refill(&self) {
        self.budget.set(self.size / self.meta.page_size);
    }

    fn walk(
        &self,
        page: u64,
        depth: usize,
        visit: &mut dyn FnMut(Leaf<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(damaged("its tree is too deep"));
        }
        let bytes = self.run(page)?;
        self.elements(&Page::read(&bytes)?, depth, visit)
    }

    fn elements(
        &self,
        page: &Page<'_>,
        depth: usize,
        visit: &mut dyn FnMut(Leaf<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if page.flags == BRANCH && page.count == 0 {
            return Err(damaged("a branch leads nowhere"));
        }
        for index in (0..page.count).rev() {
            match page.flags {
                BRANCH => self.walk(page.child(index)?, depth + 1, visit)?,
                LEAF => visit(page.leaf(index)?)?,
                _ => return Err(damaged("a page is neither branch nor leaf")),
            }
        }
        Ok(())
    }

    /// A page with those that it runs over into.
    fn run(&self, page: u64) -> Result<Vec<u8>, Error> {
        let page_size = self.meta.page_size;
        // The first two are meta pages.
        if !(2..self.meta.end).contains(&page) {
            return Err(damaged("a page lies outside of the file"));
        }
        let at = page * page_size;
        let mut header = [0; PAGE_HEADER];
        read_at(self.file, &mut header, at)?;
        if u64_at(&header, 0)? != page {
            return Err(damaged("a page has another page's number"));
        }
        let pages = u64::from(u32_at(&header, 12)?) + 1;
        let left = self.budget.get().checked_sub(pages);
        self.budget.set(left.ok_or_else(|| damaged("its pages run in a circle"))?);
        let length = pages * page_size;
        if length > MAX_RUN || length > self.size - at {
            return Err(damaged("a page is larger than the file"));
        }
        let mut bytes =
            vec![0; usize::try_from(length).map_err(|_| damaged("a page is too large"))?];
        read_at(self.file, &mut bytes, at)?;
        Ok(bytes)
    }
}

impl Bucket {
    fn read(value: &[u8]) -> Result<Self, Error> {
        let inline = value.get(BUCKET_HEADER..).ok_or_else(|| damaged("a bucket is cut off"))?;
        Ok(match u64_at(value, 0)? {
            0 => Self::Inline(inline.to_vec()),
            page => Self::Page(page),
        })
    }
}

impl<'a> Page<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        let (flags, count) = (u16_at(bytes, 8)?, usize::from(u16_at(bytes, 10)?));
        Ok(Self { bytes, flags, count })
    }

    fn child(&self, index: usize) -> Result<u64, Error> {
        u64_at(self.bytes, PAGE_HEADER + index * ELEMENT + 8)
    }

    fn leaf(&self, index: usize) -> Result<Leaf<'a>, Error> {
        let at = PAGE_HEADER + index * ELEMENT;
        let field = |offset| u32_at(self.bytes, at + offset);
        let number =
            |value: u32| usize::try_from(value).map_err(|_| damaged("a number is too large"));
        let (position, key, value) = (number(field(4)?)?, number(field(8)?)?, number(field(12)?)?);
        let cut = || damaged("an element lies outside of its page");
        let from = at.checked_add(position).ok_or_else(cut)?;
        let middle = from.checked_add(key).ok_or_else(cut)?;
        let end = middle.checked_add(value).ok_or_else(cut)?;
        Ok(Leaf {
            is_bucket: field(0)? & IS_BUCKET != 0,
            key: self.bytes.get(from..middle).ok_or_else(cut)?,
            value: self.bytes.get(middle..end).ok_or_else(cut)?,
        })
    }
}

impl Meta {
    /// What is there, if it is sound.
    fn read(file: &File, at: u64) -> Option<Self> {
        let mut page = [0; PAGE_HEADER + META];
        read_at(file, &mut page, at).ok()?;
        let meta = &page[PAGE_HEADER..];
        let sound = u32_at(meta, 0).ok()? == MAGIC
            && u32_at(meta, 4).ok()? == VERSION
            && u64_at(meta, 56).ok()? == fnv1a(&meta[..56]);
        let page_size = u64::from(u32_at(meta, 8).ok()?);
        let usable = page_size.is_power_of_two() && (512..=65_536).contains(&page_size);
        (sound && usable).then_some(Self {
            page_size,
            root: u64_at(meta, 16).ok()?,
            end: u64_at(meta, 40).ok()?,
            transaction: u64_at(meta, 48).ok()?,
        })
    }
}

fn newest_meta(file: &File, size: u64) -> Result<Meta, Error> {
    let first = Meta::read(file, 0);
    let second = match first {
        Some(meta) => Meta::read(file, meta.page_size).filter(|m| m.page_size == meta.page_size),
        // Where the second one is depends on the size of pages, which only it can tell.
        None => (9..=16)
            .map(|shift| 1 << shift)
            .find_map(|at| Meta::read(file, at).filter(|meta| meta.page_size == at)),
    };
    let newest = first.into_iter().chain(second).max_by_key(|meta| meta.transaction);
    let newest = newest.ok_or_else(|| Error::failed("it is no database of etcd, or damaged"))?;
    match newest.end.checked_mul(newest.page_size) {
        Some(end) if end <= size && newest.end >= 4 => Ok(newest),
        _ => Err(damaged("it is cut off")),
    }
}

pub(super) fn read_at(file: &File, buffer: &mut [u8], at: u64) -> Result<(), Error> {
    file.read_exact_at(buffer, at).map_err(|error| damaged("it is cut off").because(error))
}

fn damaged(what: &str) -> Error {
    Error::failed(format!("it is damaged: {what}"))
}

fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Error> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or_else(|| damaged("a page is cut off"))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Error> {
    Ok(u16::from_le_bytes(array(bytes, at)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Error> {
    Ok(u32::from_le_bytes(array(bytes, at)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Error> {
    Ok(u64::from_le_bytes(array(bytes, at)?))
}
