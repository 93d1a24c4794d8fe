//! The documents: every link leads somewhere, and every page is linked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page below `directory`.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// A page's lines outside of code.
fn prose(page: &Path) -> Vec<String> {
    let text =
        fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let mut code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// Where a page's links lead that stay here: the file, and the heading's anchor.
fn links(page: &Path) -> Vec<(PathBuf, Option<String>)> {
    let directory = page.parent().expect("a directory");
    let mut found = Vec::new();
    for line in prose(page) {
        for rest in line.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = match target.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor.to_owned())),
                None => (target, None),
            };
            let file = if file.is_empty() {
                page.to_owned()
            } else {
                directory.join(file)
            };
            found.push((file, anchor));
        }
    }
    found
}

/// The anchor of a heading: small letters, no punctuation, `-` for a space.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_leads_somewhere_and_every_page_is_linked() {
    let docs = root().join("docs");
    let mut all = pages(&docs);
    all.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    let mut broken = Vec::new();
    for page in &all {
        for (file, wanted) in links(page) {
            let there = file.exists()
                && wanted.as_ref().is_none_or(|wanted| {
                    prose(&file)
                        .iter()
                        .any(|line| line.starts_with('#') && anchor(line) == *wanted)
                });
            if !there {
                broken.push(format!("{}: {} {wanted:?}", page.display(), file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));

    let index = docs.join("README.md");
    let canonical = |path: &PathBuf| fs::canonicalize(path).expect("a page");
    let mut linked: BTreeSet<_> = links(&index)
        .iter()
        .map(|(file, _)| canonical(file))
        .collect();
    linked.insert(canonical(&index));
    let missing: Vec<_> = pages(&docs)
        .into_iter()
        .filter(|page| !linked.contains(&canonical(page)))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/README.md doesn't link {missing:?}"
    );
}
