//! Which tests of a program without the usual harness `cargo test -- <words>` selects.

#[derive(Debug, Default)]
pub struct Filter {
    words: Vec<String>,
    skipped: Vec<String>,
}

impl Filter {
    /// Reads words, and words after `--skip`. Other options change nothing.
    pub fn new(arguments: &[String]) -> Self {
        let mut filter = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match &**argument {
                "--skip" => filter.skipped.extend(arguments.next().cloned()),
                "--test-threads" => _ = arguments.next(),
                option if option.starts_with('-') => {}
                word => filter.words.push(word.to_owned()),
            }
        }
        filter
    }

    /// Whether the name of a test contains one of the words, if there are any, and none of the words to skip.
    pub fn selects(&self, name: &str) -> bool {
        let contains = |word: &String| name.contains(word.as_str());
        (self.words.is_empty() || self.words.iter().any(contains))
            && !self.skipped.iter().any(contains)
    }
}
