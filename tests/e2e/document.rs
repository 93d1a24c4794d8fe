//! What is read out of a document, so that it is tested as it stands there.

/// The fenced blocks in `language`, in their order.
pub(crate) fn blocks(document: &'static str, language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let ends = document.split(fence.as_str()).skip(1);
    ends.map(|block| block.split_once("```").expect("an end").0)
        .collect()
}
