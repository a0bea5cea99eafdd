//! A list of mistakes, each with the path of what is wrong.

use std::fmt;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where, as `keys[0].kek.arn`; empty for the whole document.
    pub path: String,
    /// What, and what would be right.
    pub message: String,
}

/// More mistakes than anybody mends in one go; what is beyond is not even looked for.
const MAX: usize = 100;

/// Every mistake found, the first hundred at least; paths are taken relative to the current scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    scope: String,
}

impl Problems {
    /// A list of one.
    pub fn one(path: &str, message: &str) -> Self {
        let mut problems = Self::default();
        problems.add(path, message);
        problems
    }

    /// Adds a mistake at `path` below the current scope.
    pub fn add(&mut self, path: &str, message: &str) {
        let dot = if path.is_empty() || path.starts_with('[') || self.scope.is_empty() {
            ""
        } else {
            "."
        };
        let path = format!("{}{dot}{path}", self.scope);
        let message = message.to_owned();
        let problem = Problem { path, message };
        if !self.is_full() && !self.list.contains(&problem) {
            self.list.push(problem);
        }
    }

    /// Whether so many mistakes were found that others may be left unsaid.
    pub fn is_full(&self) -> bool {
        self.list.len() >= MAX
    }

    /// Reports what is missing, and hands on what is there.
    pub fn require<'a, T>(&mut self, path: &str, value: &'a Option<T>) -> Option<&'a T> {
        if value.is_none() {
            self.add(path, "is required");
        }
        value.as_ref()
    }

    /// Runs `f` with all paths below `path`.
    pub fn within<T>(&mut self, path: &str, f: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.scope.clone();
        let dot = if outer.is_empty() || path.starts_with('[') { "" } else { "." };
        self.scope = format!("{outer}{dot}{path}");
        let result = f(self);
        self.scope = outer;
        result
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The mistakes in the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// `Err` with the list if there is anything in it.
    pub fn into_result<T>(self, value: Option<T>) -> Result<T, Self> {
        match value {
            Some(value) if self.is_empty() => Ok(value),
            _ if self.is_empty() => Err(Self::one("", "cannot be read")),
            _ => Err(self),
        }
    }
}

/// Lists every mistake, one a line.
pub fn mistakes(source: &str, problems: &Problems) -> String {
    let count = problems.iter().count();
    let plural = if count == 1 { "" } else { "s" };
    let least = if problems.is_full() { "at least " } else { "" };
    let list = problems.to_string().replace('\n', "\n  ");
    format!("{source} has {least}{count} mistake{plural}:\n  {list}")
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            match problem.path.as_str() {
                "" => write!(f, "{separator}{}", problem.message)?,
                path => write!(f, "{separator}{path}: {}", problem.message)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
