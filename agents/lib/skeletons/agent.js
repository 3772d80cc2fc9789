#!/usr/bin/env node
// drover-agent-NAME: counts the lines of a file. An agent of drover(8); drover-agent(7) is its author's manual.
'use strict';
const fs = require('node:fs');

// Do one item. Replace this by your own work; what it throws fails the item, and with `final` it is not tried again.
async function work(line) {
  const row = columns(line); // a row of a query has columns; one parameter is the whole line
  if (row && row.path === undefined) {
    throw Object.assign(new Error('the item has no column path, or it is NULL'), { final: true });
  }
  const path = Buffer.from(row ? row.path : line, 'latin1'); // names of files are bytes
  let lines = 0;
  for await (const chunk of fs.createReadStream(path)) {
    for (let at = chunk.indexOf(10); at >= 0; at = chunk.indexOf(10, at + 1)) lines += 1;
  }
  say(`RESULT ${JSON.stringify({ lines })}`);
}

// Print one line, at once: to a pipe, Node writes synchronously.
function say(text) {
  process.stdout.write(`${text.replace(/[\r\n]+/g, ' ')}\n`);
}

// Yield the lines of standard input, one character a byte, as items need not be UTF-8. One that its end cuts is no item.
async function* items() {
  let rest = '';
  process.stdin.setEncoding('latin1');
  for await (const chunk of process.stdin) {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop();
    yield* lines;
  }
}

// Return the columns of a line `column="value" column="value"`, unescaped; null if it is something else.
function columns(line) {
  const row = {};
  const pair = /([^"=]+)="([^"\\]*(?:\\.[^"\\]*)*)"(?: |$)/y;
  const named = { n: '\n', r: '\r', t: '\t' };
  while (pair.lastIndex < line.length) {
    const found = pair.exec(line);
    if (!found) return null;
    row[found[1]] = found[2].replace(/\\(?:x([0-9A-Fa-f]{2})|(.))/g, (_, code, character) =>
      code ? String.fromCharCode(parseInt(code, 16)) : named[character] ?? character);
  }
  return row;
}

async function main() {
  say('OK'); // ready
  for await (const line of items()) {
    try {
      await work(line);
    } catch (error) {
      say(`FAIL${error.final ? '!' : ''} ${error.message.slice(0, 1000)}`); // a line over 1 MiB would be the end of us
    }
    say('OK'); // this item is finished, and here is room for the next
  }
}

main();
