//! The transcripts of the guide: what the operator types, and what comes back.

/// A section of the guide with commands.
pub(crate) struct Section<'a> {
    pub(crate) heading: &'a str,
    pub(crate) typed: Vec<Typed<'a>>,
}

/// A command, and the lines below it.
pub(crate) struct Typed<'a> {
    pub(crate) command: &'a str,
    pub(crate) output: String,
}

impl Typed<'_> {
    /// Returns whether the command changes nothing.
    pub(crate) fn only_looks(&self) -> bool {
        let looks = ["list", "top", "find", "peek", "get", "log"];
        self.command.split(' ').nth(1).is_some_and(|word| looks.contains(&word))
    }
}

/// Returns the sections that have transcripts: blocks of the language `console`, in which `$ ` is before a command.
pub(crate) fn sections(page: &str) -> Vec<Section<'_>> {
    let (mut sections, mut is_transcript) = (Vec::<Section<'_>>::new(), false);
    for line in page.lines() {
        let last = sections.last_mut();
        if let Some(heading) = line.strip_prefix("## ") {
            sections.push(Section { heading, typed: Vec::new() });
        } else if line.starts_with("```") {
            is_transcript = line == "```console";
        } else if is_transcript {
            let typed = &mut last.expect("a heading above the transcript").typed;
            if let Some(command) = line.strip_prefix("$ ") {
                typed.push(Typed { command, output: String::new() });
                continue;
            }
            let output = &mut typed.last_mut().expect("a command above the output").output;
            output.push_str(line);
            output.push('\n');
        }
    }
    sections.retain(|section| !section.typed.is_empty());
    sections
}

/// Returns an output without what differs from night to night: times, moments, names of processes, places in the
/// code.
pub(crate) fn comparable(output: &str) -> String {
    let lines = output.lines().map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let before = |at: usize| at.checked_sub(1).map_or("", |before| words[before]);
        let compared = words.iter().enumerate().map(|(at, word)| {
            let bare = word.trim_end_matches([',', ':', '`', ';']);
            let rest = &word[bare.len()..];
            let after = words.get(at + 1).map_or("", |after| after.trim_end_matches(','));
            let shown = match bare {
                _ if before(at) == "process" => "ID",
                _ if is_duration(bare) && (before(at) == "in" || after == "ago") => "TIME",
                // Each operating system has its own number for a refused connection.
                _ if before(at) == "error" => "NUMBER",
                _ if bare.len() == 20 && bare.ends_with('Z') => "MOMENT",
                _ if bare.contains(".rs:") => "PLACE",
                _ => bare,
            };
            format!("{shown}{rest}")
        });
        compared.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns whether a word is a duration as the tool prints it: `350ms`, `59m48s`.
fn is_duration(word: &str) -> bool {
    let units = |letter: char| "dhms".contains(letter);
    word.starts_with(|first: char| first.is_ascii_digit())
        && word.ends_with(units)
        && word.chars().all(|letter| letter.is_ascii_digit() || units(letter))
}
