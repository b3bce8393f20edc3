//! What a text names: commands, links, headings.

use std::collections::BTreeSet;

/// The commands of shell blocks, without comments, and commands within the text.
pub(super) fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut block = None::<&str>;
    let mut begun = String::new();
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language) };
            continue;
        }
        match block {
            Some("sh") => {
                let code = line.split("  #").next().unwrap_or_default().trim();
                begun.push_str(code.trim_end_matches('\\'));
                if !code.ends_with('\\') {
                    let words: Vec<_> = begun.split_whitespace().collect();
                    if !words.is_empty() && !words[0].starts_with('#') {
                        commands.push(words.join(" "));
                    }
                    begun.clear();
                }
            }
            Some(_) => {}
            None => {
                let spans = line.split('`').skip(1).step_by(2);
                let is_command = |span: &&str| {
                    ["cargo ", "cd models ", "tests/run", ".ci/run"]
                        .iter()
                        .any(|known| span.starts_with(known))
                };
                commands.extend(spans.filter(is_command).map(str::to_owned));
            }
        }
    }
    commands
}

/// The targets of links, in their places and in definitions, outside of code.
pub(super) fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            links.extend(inline.map(|(target, _)| target.to_owned()));
            if let Some((_, target)) = line.split_once("]: ")
                && line.starts_with('[')
            {
                links.push(target.to_owned());
            }
        }
    }
    links
}

/// The anchors that GitHub gives to headings.
pub(super) fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && line.starts_with('#') {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|one| one.is_alphanumeric() || " -_".contains(*one));
            anchors.insert(kept.map(|one| if one == ' ' { '-' } else { one }).collect());
        }
    }
    anchors
}
