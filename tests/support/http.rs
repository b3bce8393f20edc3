//! The least that is needed to see the bytes of an HTTP answer: one request a connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// What follows the headers.
    pub body: String,
}

impl Answer {
    /// The value of a header, if it is there once.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(given, _)| given == name);
        let value = values.next().map(|(_, value)| value.as_str());
        value.filter(|_| values.next().is_none())
    }
}

/// Sends a GET with the given header lines and reads the answer to its end.
///
/// # Panics
///
/// When the server does not answer in HTTP.
#[must_use]
pub fn get(address: SocketAddr, path: &str, headers: &[&str]) -> Answer {
    ask(address, "GET", path, headers, &[])
}

/// Sends a POST with the given header lines and body, and reads the answer to its end.
///
/// # Panics
///
/// When the server does not answer in HTTP.
#[must_use]
pub fn post(address: SocketAddr, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    let length = format!("content-length: {}", body.len());
    ask(address, "POST", path, &[headers, &[&length]].concat(), body)
}

/// The same with any method.
///
/// # Panics
///
/// When the server does not answer in HTTP.
#[must_use]
pub fn ask(address: SocketAddr, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let headers: String = headers.iter().flat_map(|line| [line, "\r\n"]).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("the request is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    Answer {
        status: status.and_then(|code| code.parse().ok()).expect("a status"),
        headers: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}
