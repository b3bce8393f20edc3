//! Finds the names in a text of Lua 5.1, as far as the scripts use the language.

use std::collections::BTreeSet;

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The names in a text. Scopes are left to Redis: a script that uses a name outside of its block fails there.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Names that the text uses and does not declare.
    pub(crate) free: BTreeSet<String>,
    pub(crate) declared: BTreeSet<String>,
    /// Names that the text declares at the start of a line: scripts that include it can use them.
    pub(crate) exported: BTreeSet<String>,
}

impl Names {
    pub(crate) fn of(text: &str) -> Self {
        let (mut used, mut declared) = (BTreeSet::new(), BTreeSet::new());
        let (mut before, mut is_listed, mut braces) = ("", false, 0);
        let mut tokens = tokens(text).into_iter().peekable();
        while let Some(token) = tokens.next() {
            // A list of names goes on to the first token that is none of these. A second name begins a statement.
            is_listed = match token {
                "local" | "for" | "function" => true,
                "," | "(" | "..." => is_listed,
                _ => is_listed && is_name(token) && !is_name(before),
            };
            match token {
                "{" => braces += 1,
                "}" => braces -= 1,
                _ => {}
            }
            let is_field = [".", ":"].contains(&before)
                || braces > 0 && tokens.peek().is_some_and(|behind| *behind == "=");
            if is_name(token) && !is_field {
                let names = if is_listed { &mut declared } else { &mut used };
                names.insert(token.to_owned());
            }
            before = token;
        }
        let locals = text.lines().filter_map(|line| line.strip_prefix("local "));
        let lists =
            locals.filter_map(|it| it.trim_start_matches("function ").split(['=', '(']).next());
        let exported = lists.flat_map(|names| names.split(',').map(|name| name.trim().to_owned()));
        let exported = exported.collect();
        Self { free: used.difference(&declared).cloned().collect(), declared, exported }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|byte: char| byte.is_ascii_alphabetic() || byte == '_')
        && !KEYWORDS.contains(&token)
}

fn is_of_name(byte: char) -> bool {
    byte.is_ascii_alphanumeric() || byte == '_'
}

/// Splits a text into tokens, without comments.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("--") || rest.starts_with("#!") {
            assert!(!rest.starts_with("--["), "a long comment");
            rest.find('\n').unwrap_or(rest.len())
        } else if first.is_ascii_digit() {
            let is_of_number = |byte: char| is_of_name(byte) || byte == '.';
            rest.find(|byte| !is_of_number(byte)).unwrap_or(rest.len())
        } else if is_of_name(first) {
            rest.find(|byte| !is_of_name(byte)).unwrap_or(rest.len())
        } else if first == '\'' || first == '"' {
            let mut is_escaped = false;
            let end = rest[1..].find(|byte| {
                let ends = byte == first && !is_escaped;
                is_escaped = byte == '\\' && !is_escaped;
                ends
            });
            end.expect("the end of a text") + 2
        } else {
            let symbols = ["...", "..", "==", "~=", "<=", ">="];
            symbols.into_iter().find(|symbol| rest.starts_with(symbol)).map_or(1, str::len)
        };
        let (token, behind) = rest.split_at(length);
        if !token.starts_with("--") && !token.starts_with("#!") {
            tokens.push(token);
        }
        rest = behind.trim_start();
    }
    tokens
}
