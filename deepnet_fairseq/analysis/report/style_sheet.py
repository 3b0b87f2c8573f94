"""How a report's page looks: light and dark, wide and narrow, on a screen and on paper."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --text: #1c1e21; --faint: #5b6168; --line: #d5d9de; --stripe: #f5f7f9;
  --link: #0b57a4; --bad: #9a3412; --note: #fff4d6; --note-line: #b7791f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --text: #e6e8eb; --faint: #a3abb4; --line: #3a4149; --stripe: #1d2227;
    --link: #8ab8f0; --bad: #ffb38a; --note: #362a10; --note-line: #d9a441;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: clamp(1.4rem, 1.1rem + 1.6vw, 2rem); line-height: 1.25; margin: 0 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p, li { max-width: 48rem; overflow-wrap: anywhere; }
a { color: var(--link); text-underline-offset: .15em; }
.source { margin: 0; color: var(--faint); }
.banner, .warning {
  margin: 1rem 0 0; padding: .6rem .9rem; background: var(--note); border-left: .3rem solid var(--note-line);
}
.banner { font-weight: 600; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; border: 1px solid var(--line); border-radius: .4rem; }
.scroll:focus-visible, a:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table {
  border-collapse: separate; border-spacing: 0; width: 100%;
  font-size: .9375rem; font-variant-numeric: tabular-nums;
}
caption { text-align: left; padding: .5rem .7rem; color: var(--faint); }
caption span { position: sticky; left: .7rem; display: inline-block; max-width: calc(100vw - 4rem); }
th, td {
  padding: .4rem .7rem; text-align: right; vertical-align: top; white-space: nowrap;
  border-top: 1px solid var(--line);
}
thead th { font-weight: 600; border-bottom: 1px solid var(--text); vertical-align: bottom; }
th:first-child {
  position: sticky; left: 0; z-index: 1; text-align: left; background: var(--page);
  border-right: 1px solid var(--line);
}
tbody th { font-weight: 600; }
tbody tr:nth-child(even) > * { background: var(--stripe); }
.words { text-align: left; }
.paper { display: block; color: var(--faint); font-size: .875rem; }
td.diverged .value { color: var(--bad); font-style: italic; }
td.not-run .value, td.absent .value, td.not-scored .value { color: var(--faint); }
td.running .value { font-style: italic; }
td.scored .value { font-weight: 600; }
sup { font-size: .75em; line-height: 0; }
figure { margin: 0; }
.picture { background: #ffffff; padding: .5rem; text-align: center; }
.picture img { display: block; margin: 0 auto; max-width: 100%; height: auto; }
ul { padding-left: 1.2rem; }
.letters { list-style: none; padding-left: 0; }
details { border-top: 1px solid var(--line); padding: .4rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre {
  margin: .5rem 0; padding: .7rem; background: var(--stripe); font-size: .875rem;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
@media (max-width: 40rem) {
  main { padding: 1rem .75rem 3rem; }
  th, td { padding: .4rem .5rem; }
  th:first-child { min-width: 6.5rem; max-width: 45vw; overflow-wrap: break-word; white-space: normal; }
  .picture img { max-width: none; }
}
@media print {
  :root { --page: #ffffff; --text: #000000; --faint: #444444; --line: #bbbbbb; --stripe: #ffffff; --link: #000000; }
  main { max-width: none; padding: 0; }
  .scroll { overflow: visible; border: 0; }
  table { font-size: 8pt; }
  th:first-child, caption { position: static; }
  th, td { padding: 2pt 4pt; white-space: normal; }
  tr, figure, .banner { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""
