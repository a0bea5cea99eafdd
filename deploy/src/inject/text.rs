//! Manifests as text that can be changed in places, so that everything else stays as its owner
//! wrote it: comments, order, quotes, blank lines, line ends.
//!
//! A parser says where each node is; a change cuts and pastes text there. Nothing is trusted to
//! have gone well: after each change the text is parsed again and must mean what it meant before,
//! plus that change and nothing else. A text that cannot be changed so (because of anchors, say)
//! is refused, never guessed at.

mod cuts;
mod draft;
mod json;
mod places;
mod tree;
mod write;
mod yaml;

#[cfg(test)]
mod tests;

pub(super) use draft::{Draft, Origin};
pub(super) use tree::{Kind, Node, Path};

/// What a text is written in: the answer is written in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    Yaml,
    Json,
}
