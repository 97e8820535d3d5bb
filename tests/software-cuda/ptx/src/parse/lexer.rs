//! Words, signs and texts of PTX, with their lines.

use crate::error::{ParseError, ParseErrorKind};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name, a number, a directive or an instruction with all its modifiers.
    Word,
    /// One of the signs.
    Sign,
    /// Between quotation marks, without them.
    Quoted,
    /// After the last.
    End,
}

/// One token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) line: u32,
}

impl Token<'_> {
    pub(super) fn is(&self, sign: &str) -> bool {
        self.kind == Kind::Sign && self.text == sign
    }
}

/// Tokens with a position among them.
pub(super) struct Cursor<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    end: Token<'a>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self, ParseError> {
        let tokens = split(text)?;
        let line = tokens.last().map_or(1, |token| token.line);
        Ok(Self {
            tokens,
            at: 0,
            end: Token {
                kind: Kind::End,
                text: "",
                line,
            },
        })
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.peek_at(0)
    }

    /// The token `ahead` places after the next one.
    pub(super) fn peek_at(&self, ahead: usize) -> Token<'a> {
        self.tokens
            .get(self.at + ahead)
            .copied()
            .unwrap_or(self.end)
    }

    pub(super) fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub(super) fn line(&self) -> u32 {
        self.peek().line
    }

    /// Takes the sign if it is next.
    pub(super) fn eat(&mut self, sign: &str) -> bool {
        let found = self.peek().is(sign);
        if found {
            self.at += 1;
        }
        found
    }

    /// Takes the word if it is next.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let token = self.peek();
        let found = token.kind == Kind::Word && token.text == word;
        if found {
            self.at += 1;
        }
        found
    }

    pub(super) fn expect(&mut self, sign: &'static str) -> Result<(), ParseError> {
        if self.eat(sign) {
            Ok(())
        } else {
            Err(self.unexpected(sign))
        }
    }

    /// Takes the next word.
    pub(super) fn word(&mut self, wanted: &'static str) -> Result<&'a str, ParseError> {
        let token = self.peek();
        if token.kind != Kind::Word {
            return Err(self.unexpected(wanted));
        }
        self.at += 1;
        Ok(token.text)
    }

    /// Takes the next word as a number.
    pub(super) fn number(&mut self) -> Result<u64, ParseError> {
        let line = self.line();
        let word = self.word("a number")?;
        number(word).ok_or_else(|| ParseError {
            line,
            kind: ParseErrorKind::BadNumber(word.to_owned()),
        })
    }

    /// Takes all tokens of a line.
    pub(super) fn rest_of_line(&mut self, line: u32) {
        while self.peek().kind != Kind::End && self.line() == line {
            self.at += 1;
        }
    }

    /// Takes all tokens until the sign that closes what the last taken one opened.
    pub(super) fn skip_block(&mut self) -> Result<(), ParseError> {
        let mut depth = 1u64;
        while depth > 0 {
            let token = self.next();
            if token.kind == Kind::End {
                return Err(self.unexpected("}"));
            }
            if token.is("{") {
                depth += 1;
            } else if token.is("}") {
                depth -= 1;
            }
        }
        Ok(())
    }

    pub(super) fn unexpected(&self, wanted: &'static str) -> ParseError {
        let token = self.peek();
        ParseError {
            line: token.line,
            kind: ParseErrorKind::Unexpected {
                found: token.text.to_owned(),
                wanted,
            },
        }
    }
}

/// The bits of a number: decimal, `0x`, octal, or a float by its bits (`0f`, `0d`).
pub(super) fn number(word: &str) -> Option<u64> {
    if let Some(bits) = word.strip_prefix("0f").or_else(|| word.strip_prefix("0F")) {
        return (bits.len() == 8)
            .then(|| u32::from_str_radix(bits, 16).ok().map(u64::from))
            .flatten();
    }
    if let Some(bits) = word.strip_prefix("0d").or_else(|| word.strip_prefix("0D")) {
        return (bits.len() == 16)
            .then(|| u64::from_str_radix(bits, 16).ok())
            .flatten();
    }
    let word = word.strip_suffix('U').unwrap_or(word);
    if let Some(digits) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        return u64::from_str_radix(digits, 16).ok();
    }
    if word.len() > 1 && word.starts_with('0') {
        return u64::from_str_radix(word, 8).ok();
    }
    word.parse().ok()
}

fn split(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut line = 1u32;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'\n' => line += 1,
            b' ' | b'\t' | b'\r' => {}
            b'/' if bytes.get(at) == Some(&b'/') => {
                while bytes.get(at).is_some_and(|&byte| byte != b'\n') {
                    at += 1;
                }
            }
            b'/' if bytes.get(at) == Some(&b'*') => {
                let first = line;
                at += 1;
                loop {
                    match bytes.get(at) {
                        None => {
                            return Err(ParseError {
                                line: first,
                                kind: ParseErrorKind::Unexpected {
                                    found: String::new(),
                                    wanted: "*/",
                                },
                            });
                        }
                        Some(b'*') if bytes.get(at + 1) == Some(&b'/') => break,
                        Some(b'\n') => line += 1,
                        Some(_) => {}
                    }
                    at += 1;
                }
                at += 2;
            }
            b'"' => {
                while bytes
                    .get(at)
                    .is_some_and(|&byte| byte != b'"' && byte != b'\n')
                {
                    at += 1;
                }
                if bytes.get(at) != Some(&b'"') {
                    return Err(ParseError {
                        line,
                        kind: ParseErrorKind::Unexpected {
                            found: String::new(),
                            wanted: "\"",
                        },
                    });
                }
                tokens.push(Token {
                    kind: Kind::Quoted,
                    text: piece(text, start + 1, at),
                    line,
                });
                at += 1;
            }
            _ if in_word(byte) => {
                // Two colons belong to a word (`.shared::cta`), one marks a label.
                loop {
                    match bytes.get(at) {
                        Some(&next) if in_word(next) => at += 1,
                        Some(b':') if bytes.get(at + 1) == Some(&b':') => at += 2,
                        _ => break,
                    }
                }
                tokens.push(Token {
                    kind: Kind::Word,
                    text: piece(text, start, at),
                    line,
                });
            }
            b'{' | b'}' | b'[' | b']' | b'(' | b')' | b'<' | b'>' | b',' | b';' | b':' | b'@'
            | b'!' | b'+' | b'-' | b'=' | b'|' | b'*' => {
                tokens.push(Token {
                    kind: Kind::Sign,
                    text: piece(text, start, at),
                    line,
                });
            }
            _ => {
                let found = text
                    .get(start..)
                    .and_then(|rest| rest.chars().next())
                    .unwrap_or('?')
                    .to_string();
                return Err(ParseError {
                    line,
                    kind: ParseErrorKind::Unexpected {
                        found,
                        wanted: "PTX",
                    },
                });
            }
        }
    }
    Ok(tokens)
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Part of the text; all tokens begin and end at ASCII signs, so the range is always one.
fn piece(text: &str, start: usize, end: usize) -> &str {
    text.get(start..end).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(&str, u32)> {
        split(text)
            .unwrap()
            .into_iter()
            .map(|token| (token.text, token.line))
            .collect()
    }

    #[test]
    fn words_signs_and_lines() {
        assert_eq!(
            words("ld.shared::cta.u32 %r1, [%rd2+-4]; // x\n/* a\n b */ $L_1: .file 1 \"a b\""),
            [
                ("ld.shared::cta.u32", 1),
                ("%r1", 1),
                (",", 1),
                ("[", 1),
                ("%rd2", 1),
                ("+", 1),
                ("-", 1),
                ("4", 1),
                ("]", 1),
                (";", 1),
                ("$L_1", 3),
                (":", 3),
                (".file", 3),
                ("1", 3),
                ("a b", 3)
            ]
        );
    }

    #[test]
    fn numbers() {
        assert_eq!(number("0x1F"), Some(31));
        assert_eq!(number("017"), Some(15));
        assert_eq!(number("4294967295U"), Some(0xffff_ffff));
        assert_eq!(number("0f3F800000"), Some(0x3f80_0000));
        assert_eq!(number("0d3FF0000000000000"), Some(0x3ff0_0000_0000_0000));
        for wrong in ["0f3F80000", "0x", "18446744073709551616", "1.5", "a"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_does_not_end() {
        for text in ["\"abc", "\"abc\n\"", "/* abc"] {
            assert!(
                matches!(
                    split(text).unwrap_err().kind,
                    ParseErrorKind::Unexpected { .. }
                ),
                "{text}"
            );
        }
        assert_eq!(
            split("\n\n§").unwrap_err(),
            ParseError {
                line: 3,
                kind: ParseErrorKind::Unexpected {
                    found: "§".into(),
                    wanted: "PTX"
                }
            }
        );
    }
}
