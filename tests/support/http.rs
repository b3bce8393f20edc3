//! A minimal HTTP client that shows the bytes of a response. Each request has a connection of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The names, in lower case, and the values of the headers.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    /// Returns the value of a header, if the response has exactly one with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(given, _)| given == name);
        let value = values.next().map(|(_, value)| value.as_str());
        value.filter(|_| values.next().is_none())
    }
}

pub fn get(address: SocketAddr, path: &str, headers: &[&str]) -> Response {
    request(address, "GET", path, headers, &[])
}

pub fn post(address: SocketAddr, path: &str, headers: &[&str], body: &[u8]) -> Response {
    let length = format!("content-length: {}", body.len());
    request(address, "POST", path, &[headers, &[&length]].concat(), body)
}

/// Sends a request with any method, and reads the whole response.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> Response {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let headers: String = headers.iter().flat_map(|line| [line, "\r\n"]).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("the request is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    Response {
        status: status.and_then(|code| code.parse().ok()).expect("a status"),
        headers: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}
