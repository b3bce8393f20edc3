//! Finds the names in a text of Lua 5.1, as far as the scripts use the language.

use std::collections::BTreeSet;
use std::mem::take;

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The names in a text.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Those that no declaration of the text has in scope.
    pub(crate) free: BTreeSet<String>,
    pub(crate) declared: BTreeSet<String>,
    /// Those that the text declares outside of any block, so that a text after it can use them.
    pub(crate) exported: BTreeSet<String>,
}

impl Names {
    pub(crate) fn of(text: &str) -> Self {
        let (tokens, scopes, names) = (tokens(text), vec![Scope::default()], Self::default());
        Scanner { tokens, at: 0, scopes, names }.scan()
    }
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

/// Returns whether a token is a name, a keyword, a number or a text.
fn is_word(token: &str) -> bool {
    token.starts_with(|byte| is_of_name(byte) || byte == '\'' || byte == '"')
}

fn is_name(token: &str) -> bool {
    token.starts_with(|byte: char| byte.is_ascii_alphabetic() || byte == '_')
        && !KEYWORDS.contains(&token)
}

fn ends_operand(token: &str) -> bool {
    [")", "]", "}", "...", "end", "nil", "true", "false"].contains(&token)
        || is_word(token) && !KEYWORDS.contains(&token)
}

/// A block or a pair of brackets.
#[derive(Default)]
struct Scope<'a> {
    /// The word or the symbol that opens it.
    opener: &'a str,
    declared: BTreeSet<&'a str>,
    /// The names of a `local` whose values are not read to the end.
    pending: Vec<&'a str>,
}

struct Scanner<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    scopes: Vec<Scope<'a>>,
    names: Names,
}

impl<'a> Scanner<'a> {
    fn scan(mut self) -> Names {
        let (mut before, mut counters) = ("", Vec::new());
        while let Some(token) = self.tokens.get(self.at).copied() {
            if ends_operand(before) && is_word(token) && token != "and" && token != "or" {
                self.end_statement();
            }
            match token {
                "local" if self.behind() != "function" => {
                    let names = self.list();
                    self.scope().pending = names;
                }
                "for" => counters = self.list(),
                "do" => self.open(token, &take(&mut counters)),
                "function" => {
                    if before == "local" {
                        self.declare(&[self.behind()]);
                        self.at += 1;
                    }
                    assert_eq!(self.behind(), "(", "the arguments of a function");
                    self.at += 1;
                    let arguments = if self.behind() == ")" { Vec::new() } else { self.list() };
                    assert_eq!(self.behind(), ")", "the end of the arguments");
                    self.at += 1;
                    self.open(token, &arguments);
                }
                "(" | "[" | "{" | "then" | "repeat" => self.open(token, &[]),
                ")" | "]" | "}" | "end" | "elseif" => self.close(token),
                "else" => {
                    self.close(token);
                    self.open(token, &[]);
                }
                "until" => self.scope().opener = token,
                _ => {
                    let is_field = [".", ":"].contains(&before)
                        || self.scope().opener == "{" && self.behind() == "=";
                    let is_declared = |scope: &Scope<'_>| scope.declared.contains(token);
                    if is_name(token) && !is_field && !self.scopes.iter().any(is_declared) {
                        self.names.free.insert(token.to_owned());
                    }
                }
            }
            before = self.tokens[self.at];
            self.at += 1;
        }
        self.end_statement();
        let [outermost] = &self.scopes[..] else { panic!("a block has no end") };
        self.names.exported = outermost.declared.iter().map(|name| (*name).to_owned()).collect();
        self.names
    }

    /// Returns the token behind the present one; an empty one at the end.
    fn behind(&self) -> &'a str {
        self.tokens.get(self.at + 1).copied().unwrap_or_default()
    }

    /// Reads the names behind the present token, with commas between them.
    fn list(&mut self) -> Vec<&'a str> {
        let mut names = Vec::new();
        loop {
            names.push(self.behind());
            self.at += 1;
            if self.behind() != "," {
                return names;
            }
            self.at += 1;
        }
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        self.scopes.last_mut().expect("a scope")
    }

    fn open(&mut self, opener: &'a str, names: &[&'a str]) {
        self.scopes.push(Scope { opener, ..Scope::default() });
        self.declare(names);
    }

    fn close(&mut self, token: &str) {
        let opener = self.scope().opener;
        let fits = match token {
            ")" => opener == "(",
            "]" => opener == "[",
            "}" => opener == "{",
            _ => !["(", "[", "{", ""].contains(&opener),
        };
        assert!(fits, "`{token}` ends `{opener}`");
        self.scopes.pop();
    }

    /// Ends the statement before the present token: from here on, the names of a `local` are declared.
    fn end_statement(&mut self) {
        let pending = take(&mut self.scope().pending);
        self.declare(&pending);
        if self.scope().opener == "until" {
            self.scopes.pop();
        }
    }

    fn declare(&mut self, names: &[&'a str]) {
        self.names.declared.extend(names.iter().map(|name| (*name).to_owned()));
        self.scope().declared.extend(names.iter().copied());
    }
}

#[test]
fn finds_the_names_that_nothing_declares() {
    let set = |names: &str| -> BTreeSet<String> { names.split(' ').map(str::to_owned).collect() };
    let names = Names::of(
        "local a, b = c, 'not d -- or' -- nor e
         local function f(x, ...) return x + g.h(f, { i = x, [j] = -k }) end
         for n = 1, #l do
           local n = m
           a[n], o = n
         end",
    );
    assert_eq!(names.free, set("c g j k l m o"));
    assert_eq!(names.exported, set("a b f"));
    let blocks = Names::of(
        "if p then local q = 1 elseif q then q = 2 else local r end
         repeat local s until s
         while t do return end
         local u = u",
    );
    assert_eq!(blocks.free, set("p q t u"));
}
