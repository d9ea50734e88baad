//! Draws the screen on a terminal of any size: content that does not fit is cut.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};
use weir_shared::api::fleet::Fleet;
use weir_shared::api::history::History;
use weir_shared::api::status::Answers;

use super::screen::{Over, Pane, Screen};
use crate::commands::look::refused;
use crate::commands::text::{maybe, percent, plain, span};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
const WARNING: Style = Style::new().fg(Color::Yellow);

/// On a terminal of fewer lines, the head has one line only.
const SMALL: u16 = 12;

/// Blanks between two columns.
const SPACING: u16 = 2;

const HELP: &str = "\
1 to 9, Tab    the lists
up down j k    choose; Page Up, Page Down, Home, End
s              sort: requests, bytes, refused, last seen
/              search; Esc ends the search
Enter          explain the chosen client: what the checks would do
b              ban the chosen netblock, or that of the client, for 1 h
u              lift the bans of the chosen client or netblock
a              allow the chosen client or netblock for 24 h
q              quit

DAY: requests of this day. HITS: requests of the netblock when it
was banned. Paths: those of the last minute, of at most 100 logged
requests a second, the others are unseen; FAILED: 500 and above.";

/// Draws everything.
pub fn draw(frame: &mut Frame, screen: &Screen) {
    let area = frame.area();
    let lines = head_lines(screen);
    let head = match area.height < SMALL {
        true => 1,
        // Before the service has answered the head has five lines already.
        false => u16::try_from(lines.len()).unwrap_or(5).max(5),
    };
    let parts = Layout::vertical([
        Constraint::Length(head),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [head, tabs, list, foot] = parts.areas(area);
    draw_lines(frame, head, lines);
    draw_lines(frame, tabs, vec![tab_line(screen)]);
    draw_list(frame, list, screen);
    draw_lines(frame, foot, vec![foot_line(screen)]);
    match &screen.over {
        Over::Nothing | Over::Search => {}
        Over::Help => popup(frame, "weir top: keys", HELP),
        Over::Text(text) => popup(frame, "any key closes", text),
        Over::Confirm(_, words) => {
            let text = format!("{words}\n\ny: yes    any other key: no");
            popup(frame, "sure?", &text);
        }
    }
}

/// Draws lines from the top of the area. A line that is cut ends with a mark, because half of a
/// number reads as another number.
fn draw_lines(frame: &mut Frame, area: Rect, lines: Vec<Line>) {
    let room = usize::from(area.width);
    let are_cut: Vec<bool> = lines.iter().map(|line| line.width() > room).collect();
    frame.render_widget(Paragraph::new(lines), area);
    for (row, is_cut) in area.rows().zip(are_cut) {
        let last = (row.right().saturating_sub(1), row.y);
        if let Some(cell) = frame.buffer_mut().cell_mut(last).filter(|_| is_cut) {
            cell.set_symbol("…");
        }
    }
}

fn tenths(value: u64) -> String {
    format!("{}.{}", value / 10, value % 10)
}

fn head_lines(screen: &Screen) -> Vec<Line<'static>> {
    let Some(look) = &screen.look else {
        return vec![Line::from("waiting for the service …")];
    };
    let status = &look.status;
    let (recent, bans, clients) = (&status.recent, &status.bans, &status.clients);
    let connections = &status.connections;
    let span_s = recent.seconds.unwrap_or(0);
    let mean = recent.requests.saturating_mul(10) / span_s.max(1);
    let now = screen.rate_tenths.map_or("–".to_owned(), tenths);
    let reasons = recent.actions.iter();
    let reasons = reasons.filter(|(name, count)| *name != "passed" && **count > 0);
    let reasons: Vec<String> = reasons
        .map(|(name, count)| format!("{} {count}", plain(name)))
        .collect();
    let mode_style = if status.observes() { WARNING } else { BOLD };
    let refused = refused(status.observes());
    let mut lines = vec![
        Line::from(vec![
            Span::styled(format!("weir {}  ", plain(&status.version)), BOLD),
            Span::styled(plain(&status.mode), mode_style),
            Span::raw(format!(
                "  up {}  {} to {}",
                span(Duration::from_secs(status.uptime_seconds)),
                maybe(status.address.as_ref()),
                plain(&status.upstream),
            )),
        ]),
        Line::from(format!(
            "{now} requests/s now, {} in {}   passed {}   {refused} {}",
            tenths(mean),
            span(Duration::from_secs(span_s)),
            percent(recent.passed, recent.requests),
            percent(recent.refused, recent.requests),
        )),
        Line::from(match reasons.is_empty() {
            true => "nothing else than passed".to_owned(),
            false => reasons.join("   "),
        }),
        Line::from(format!(
            "bans {}/{}   clients {}/{}   connections {}/{}",
            bans.active, bans.max, clients.held, clients.max, connections.open, connections.max,
        )),
        application_line(&recent.upstream, &look.history, refused),
    ];
    lines.extend(look.fleet.as_ref().map(fleet_line));
    lines
}

/// The instances that act as one with this one: `fleet weir: 3 of 3 instances live, in step`.
fn fleet_line(fleet: &Fleet) -> Line<'static> {
    let name = plain(&fleet.fleet);
    if let Some(seconds) = fleet.alone_seconds {
        let alone = span(Duration::from_secs(seconds));
        let why = maybe(fleet.why.as_ref());
        let text = format!("fleet {name}: alone for {alone}: {why}");
        return Line::styled(text, WARNING);
    }
    let instances = &fleet.instances;
    let live = instances.iter().filter(|one| one.lives()).count();
    let (step, style) = match fleet.in_step {
        true => ("in step", Style::new()),
        false => ("not in step", WARNING),
    };
    let waiting = match fleet.waiting {
        0 => String::new(),
        waiting => format!(", {waiting} events wait"),
    };
    let text = format!(
        "fleet {name}: {live} of {} instances live, {step}{waiting}",
        instances.len()
    );
    Line::styled(text, style)
}

/// The application's latency and errors, and the last minutes: `app p99 50 ms, 5xx 0.0 %`.
fn application_line(upstream: &Answers, history: &History, refused: &str) -> Line<'static> {
    let (answers, errors) = upstream.all_and_errors();
    let p99 = upstream.p99_seconds.map_or("–".to_owned(), |seconds| {
        format!("{} ms", seconds * 1000.0)
    });
    let style = if errors * 100 > answers {
        WARNING
    } else {
        Style::new()
    };
    let mut spans = vec![
        Span::raw(format!("app p99 {p99}, ")),
        Span::styled(format!("5xx {}", percent(errors, answers)), style),
    ];
    for (counts, words) in [(&history.passed, "passed"), (&history.refused, refused)] {
        if !counts.is_empty() {
            spans.push(Span::raw(format!("   {words} {}", sparkline(counts))));
        }
    }
    Line::from(spans)
}

/// One bar for each minute, relative to the highest. Any count above 0 has a visible bar.
fn sparkline(counts: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |count: &u64| {
        let step = usize::try_from(u128::from(*count) * 7 / u128::from(most)).unwrap_or(7);
        match *count {
            0 => ' ',
            _ => BARS.get(step).copied().unwrap_or('█'),
        }
    };
    counts.iter().map(bar).collect()
}

/// The columns that are left out first on a narrow terminal, so that BAN stays visible.
const DROPPED: [&str; 3] = ["SEEN", "AS", "CC"];

/// The positions of the columns that fit.
fn fitting(headings: &[&str], widths: &[u16], room: u16) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..headings.len()).collect();
    for name in DROPPED {
        let wide = |at: &usize| {
            widths
                .get(*at)
                .map_or(0, |width| usize::from(width + SPACING))
        };
        let all: usize = kept.iter().map(wide).sum();
        if all <= usize::from(room + SPACING) {
            break;
        }
        // The first column stays: it names the subject of the row.
        kept.retain(|at| *at == 0 || headings.get(*at) != Some(&name));
    }
    kept
}

fn tab_line(screen: &Screen) -> Line<'static> {
    let tab = |pane: Pane, name: &str| {
        let style = if screen.pane == pane {
            REVERSED
        } else {
            Style::new()
        };
        Span::styled(format!("{name} "), style)
    };
    let mut spans: Vec<_> = Pane::ALL.map(|(pane, name)| tab(pane, name)).into();
    if !screen.search.is_empty() || screen.over == Over::Search {
        spans.push(Span::styled(format!(" /{}", screen.search), WARNING));
    } else if screen.pane.is_sorted() {
        spans.push(Span::raw(format!(" by {}", screen.sort.name())));
    } else if let Some(left_out) = screen.left_out() {
        spans.push(Span::raw(format!(" {left_out} unseen")));
    }
    Line::from(spans)
}

fn draw_list(frame: &mut Frame, area: Rect, screen: &Screen) {
    let mut rows = screen.rows();
    let mut headings = screen.headings().to_vec();
    let width_of = |(column, heading): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        let width = widest.max(heading.chars().count()).min(40);
        u16::try_from(width).unwrap_or(40)
    };
    let widths: Vec<u16> = headings.iter().enumerate().map(width_of).collect();
    let kept = fitting(&headings, &widths, area.width);
    let pick = |row: &Vec<String>| kept.iter().filter_map(|at| row.get(*at).cloned()).collect();
    rows = rows.iter().map(pick).collect();
    headings = kept
        .iter()
        .filter_map(|at| headings.get(*at).copied())
        .collect();
    let widths = kept.iter().filter_map(|at| widths.get(*at).copied());
    let mut left = area.width;
    // Columns that begin beyond the edge are left out, and the last one is cut at the edge.
    let begins_inside = |width: &u16| {
        let inside = left > 0;
        left = left.saturating_sub(width + SPACING);
        inside
    };
    let widths: Vec<u16> = widths.take_while(begins_inside).collect();
    let last = widths.len().saturating_sub(1);
    let constraint = |(column, width)| match column == last {
        true => Constraint::Fill(1),
        false => Constraint::Length(width),
    };
    let widths: Vec<Constraint> = widths.into_iter().enumerate().map(constraint).collect();
    let is_empty = rows.is_empty();
    let rows = rows.into_iter().map(Row::new);
    let table = Table::new(rows, widths)
        .header(Row::new(headings.iter().copied()).style(BOLD))
        .row_highlight_style(REVERSED)
        .column_spacing(SPACING);
    let chosen = (!is_empty).then_some(screen.chosen);
    let mut state = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

fn foot_line(screen: &Screen) -> Line<'static> {
    if screen.is_lost {
        return Line::styled(screen.note.clone(), WARNING);
    }
    if screen.over == Over::Search {
        return Line::from("search: Enter keeps it, Esc ends it");
    }
    if let Some(fault) = screen.paths_fault().filter(|_| screen.note.is_empty()) {
        return Line::styled(fault.to_owned(), WARNING);
    }
    let keys = "?: help  s: sort  /: search  Enter: explain  b: ban  u: lift  a: allow  q: quit";
    let mut spans = Vec::new();
    if !screen.note.is_empty() {
        spans.push(Span::styled(format!("{}   ", screen.note), BOLD));
    }
    spans.push(Span::raw(keys));
    Line::from(spans)
}

/// Draws a box in the middle, as large as its text if there is room.
fn popup(frame: &mut Frame, title: &str, text: &str) {
    let area = frame.area();
    let widest = text
        .lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0);
    let width = u16::try_from(widest + 4)
        .unwrap_or(u16::MAX)
        .min(area.width);
    let inside = usize::from(width.saturating_sub(4)).max(1);
    let lines: usize = text
        .lines()
        .map(|line| line.chars().count().div_ceil(inside).max(1))
        .sum();
    let height = u16::try_from(lines + 2)
        .unwrap_or(u16::MAX)
        .min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered().title(format!(" {title} "));
    let block = block.padding(ratatui::widgets::Padding::horizontal(1));
    let text = Paragraph::new(text.to_owned()).wrap(Wrap { trim: false });
    frame.render_widget(Clear, place);
    frame.render_widget(text.block(block), place);
}

#[cfg(test)]
mod tests;
