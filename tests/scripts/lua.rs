//! A parser of Lua 5.1, as far as the scripts use it, that finds the names in a text.

use std::collections::BTreeSet;

/// The names in a text.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Those that no declaration of the text has in scope.
    pub(crate) free: BTreeSet<String>,
    /// Those that the text declares.
    pub(crate) declared: BTreeSet<String>,
    /// Those that the text declares outside of any block, so that a text after it can use them.
    pub(crate) exported: BTreeSet<String>,
}

impl Names {
    /// Returns the names in a text.
    pub(crate) fn of(text: &str) -> Self {
        let mut parser = Parser {
            tokens: tokens(text),
            at: 0,
            scopes: vec![BTreeSet::new()],
            names: Self::default(),
        };
        parser.block("");
        let exported = parser.scopes.remove(0);
        Self { exported, ..parser.names }
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

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    scopes: Vec<BTreeSet<String>>,
    names: Names,
}

impl<'a> Parser<'a> {
    /// Returns the next token; an empty one at the end.
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn accept(&mut self, token: &str) -> bool {
        let is_next = self.peek() == token;
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, token: &str) {
        let is_next = self.accept(token);
        let behind: Vec<_> = self.tokens.iter().skip(self.at).take(9).collect();
        assert!(is_next, "no `{token}` before {behind:?}");
    }

    fn declare(&mut self, name: &str) {
        self.names.declared.insert(name.to_owned());
        self.scopes.last_mut().expect("a scope").insert(name.to_owned());
    }

    fn mention(&mut self, name: &str) {
        if !self.scopes.iter().any(|scope| scope.contains(name)) {
            self.names.free.insert(name.to_owned());
        }
    }

    /// Parses statements and the word that ends them.
    fn block(&mut self, end: &str) {
        self.statements(&[end]);
        self.expect(end);
    }

    fn statements(&mut self, ends: &[&str]) {
        while !ends.contains(&self.peek()) {
            self.statement();
        }
    }

    /// Parses a block in which these names are declared.
    fn scope(&mut self, names: &[&str], parse: impl FnOnce(&mut Self)) {
        self.scopes.push(BTreeSet::new());
        for name in names {
            self.declare(name);
        }
        parse(self);
        self.scopes.pop();
    }

    fn names(&mut self) -> Vec<&'a str> {
        let mut names = vec![self.next()];
        while self.accept(",") {
            names.push(self.next());
        }
        names
    }

    fn statement(&mut self) {
        match self.next() {
            "local" if self.accept("function") => {
                let name = self.next();
                self.declare(name);
                self.function();
            }
            "local" => {
                let names = self.names();
                if self.accept("=") {
                    self.expressions();
                }
                for name in names {
                    self.declare(name);
                }
            }
            "if" => {
                self.expression();
                self.expect("then");
                self.scope(&[], |parser| parser.statements(&["elseif", "else", "end"]));
                match self.peek() {
                    // Its condition and its block are parsed as those of an `if`, which takes the `end`.
                    "elseif" => self.statement_as("if"),
                    "else" => {
                        self.next();
                        self.scope(&[], |parser| parser.block("end"));
                    }
                    _ => self.expect("end"),
                }
            }
            "while" => {
                self.expression();
                self.expect("do");
                self.scope(&[], |parser| parser.block("end"));
            }
            "for" => {
                let names = self.names();
                assert!(self.accept("=") || self.accept("in"), "a `for` without values");
                self.expressions();
                self.expect("do");
                self.scope(&names, |parser| parser.block("end"));
            }
            "repeat" => self.scope(&[], |parser| {
                parser.block("until");
                parser.expression();
            }),
            "do" => self.scope(&[], |parser| parser.block("end")),
            "return" => {
                if !["", "end", "else", "elseif", "until"].contains(&self.peek()) {
                    self.expressions();
                }
            }
            "break" => {}
            _ => {
                self.at -= 1;
                self.expressions();
                if self.accept("=") {
                    self.expressions();
                }
            }
        }
    }

    fn statement_as(&mut self, word: &'a str) {
        self.tokens[self.at] = word;
        self.statement();
    }

    /// Parses a function after its name.
    fn function(&mut self) {
        self.expect("(");
        let arguments = if self.peek() == ")" { Vec::new() } else { self.names() };
        self.expect(")");
        self.scope(&arguments, |parser| parser.block("end"));
    }

    fn expressions(&mut self) {
        self.expression();
        while self.accept(",") {
            self.expression();
        }
    }

    fn expression(&mut self) {
        const BINARY: [&str; 15] =
            ["+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", "<=", ">", ">=", "and", "or"];
        loop {
            while ["not", "-", "#"].contains(&self.peek()) {
                self.next();
            }
            self.operand();
            if !BINARY.contains(&self.peek()) {
                return;
            }
            self.next();
        }
    }

    fn operand(&mut self) {
        match self.next() {
            "{" => self.table(),
            "function" => self.function(),
            "..." | "nil" | "true" | "false" => {}
            "(" => {
                self.expression();
                self.expect(")");
                self.suffixes();
            }
            name if name.starts_with(|byte: char| byte.is_ascii_alphabetic() || byte == '_') => {
                self.mention(name);
                self.suffixes();
            }
            value => {
                let is_value = value.starts_with(|byte: char| "'\"0123456789".contains(byte));
                assert!(is_value, "`{value}` is no value");
            }
        }
    }

    /// Parses the fields and the calls behind a name.
    fn suffixes(&mut self) {
        loop {
            match self.peek() {
                "." | ":" => self.at += 2,
                "[" => {
                    self.next();
                    self.expression();
                    self.expect("]");
                }
                "(" => {
                    self.next();
                    if self.peek() != ")" {
                        self.expressions();
                    }
                    self.expect(")");
                }
                _ => return,
            }
        }
    }

    fn table(&mut self) {
        while !self.accept("}") {
            if self.accept("[") {
                self.expression();
                self.expect("]");
                self.expect("=");
            } else if self.tokens.get(self.at + 1) == Some(&"=") {
                self.at += 2;
            }
            self.expression();
            assert!(self.accept(",") || self.peek() == "}", "a table without an end");
        }
    }
}

#[test]
fn finds_the_names_that_nothing_declares() {
    let names = Names::of(
        "local a, b = c, 'not d -- or' -- nor e\n\
         local function f(x, ...) return x + g.h(f, { i = x, [j] = -k }) end\n\
         for n = 1, #l do local n = m; a[n], o = n end\n"
            .replace(';', "\n")
            .as_str(),
    );
    let free: Vec<&str> = names.free.iter().map(|name| &**name).collect();
    assert_eq!(free, ["c", "g", "j", "k", "l", "m", "o"]);
    let exported: Vec<&str> = names.exported.iter().map(|name| &**name).collect();
    assert_eq!(exported, ["a", "b", "f"]);
    let blocks = Names::of(
        "if p then local q = 1 elseif q then q = 2 else local r end\n\
         repeat local s until s\n\
         while t do return end\n\
         local u = u",
    );
    let free: Vec<&str> = blocks.free.iter().map(|name| &**name).collect();
    assert_eq!(free, ["p", "q", "t", "u"]);
}
