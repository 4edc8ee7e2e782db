// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/line_editor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/generate/interrupts.h"
#include "base/check.h"
#include "base/env.h"

namespace strata::apps {
namespace {

constexpr int kMostEntries = 1000;
constexpr int kTogetherMs = 20;  // how soon the next line of a paste is there
constexpr size_t kMostPasted = size_t{1} << 24;
constexpr wchar_t kCtrlD = L'\004';
constexpr std::wstring_view kPasteEnd = L"\033[201~";
constexpr const char* kMarkPastes = "\033[?2004h";
constexpr const char* kLeavePastes = "\033[?2004l";

void to_terminal(const char* text) {
  std::fputs(text, stderr);
  std::fflush(stderr);
}

// Text is UTF-8 here, whatever the locale says.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::string to_utf8(const wchar_t* text, size_t count) {
  std::string out;
  std::mbstate_t state = {};
  char bytes[MB_LEN_MAX];
  for (size_t i = 0; i < count; ++i) {
    const size_t size = std::wcrtomb(bytes, text[i], &state);
    if (size == static_cast<size_t>(-1)) continue;
    out.append(bytes, size);
  }
  return out;
}

// `count`: 1 or more.
std::string to_utf8_without_line_break(const wchar_t* text, int count) {
  const bool has_break = text[count - 1] == L'\n';
  return to_utf8(text, static_cast<size_t>(has_break ? count - 1 : count));
}

// What else a terminal, or the one who started the program, says by a signal while a line is read.
// Handlers note it; the line editor acts on it between two keys (el_set's EL_SIGNAL would act in
// the handler, and read a key that a signal a moment before does not break off).
class LineSignals {
 public:
  LineSignals() {
    noted_.store(0);
    for (size_t i = 0; i < kSignals.size(); ++i) install_handler(i);
  }
  ~LineSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) restore(i);
    for (size_t i = 0; i < kSignals.size(); ++i) {
      if (take(i) && kSignals[i] != SIGCONT) ::raise(kSignals[i]);
    }
  }
  LineSignals(const LineSignals&) = delete;
  LineSignals& operator=(const LineSignals&) = delete;

  // Does what was asked since the last call; the terminal is as it was found while others have it.
  void handle_pending(EditLine* editor) {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      if (!take(i)) continue;
      if (kSignals[i] == SIGWINCH) {
        ::el_resize(editor);
        continue;
      }
      if (kSignals[i] != SIGCONT) raise_with_original_handler(i, editor);
      to_terminal(kMarkPastes);
      el_set(editor, EL_PREP_TERM, 1);
      el_set(editor, EL_REFRESH);
    }
  }

 private:
  static constexpr std::array kSignals = {SIGWINCH, SIGTSTP, SIGCONT, SIGTERM, SIGHUP, SIGQUIT};

  static void on_signal(int signal) {
    noted_.fetch_or(uint64_t{1} << signal);
    Interrupts::wake();
  }
  static bool take(size_t i) {
    const uint64_t bit = uint64_t{1} << kSignals[i];
    return (noted_.fetch_and(~bit) & bit) != 0;
  }
  // What is ignored (nohup) stays ignored.
  void install_handler(size_t i) {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    CHECK(::sigaction(kSignals[i], nullptr, &before_[i]) == 0, kSignals[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
  // The terminal as it was found, and the signal as it would be without us: returns after a stop
  // (SIGTSTP) alone.
  void raise_with_original_handler(size_t i, EditLine* editor) {
    el_set(editor, EL_PREP_TERM, 0);
    to_terminal(kLeavePastes);
    restore(i);
    ::raise(kSignals[i]);
    install_handler(i);
    noted_.fetch_and(~(uint64_t{1} << SIGCONT));
  }
  void restore(size_t i) const { ::sigaction(kSignals[i], &before_[i], nullptr); }

  static std::atomic<uint64_t> noted_;
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

std::atomic<uint64_t> LineSignals::noted_{0};

// Up to its end, without it; false where the input ends before.
bool read_paste(EditLine* editor, std::wstring& text) {
  wchar_t c = 0;
  while (!text.ends_with(kPasteEnd) && text.size() < kMostPasted) {
    if (el_wgetc(editor, &c) != 1) return false;
    if (c == L'\r') c = L'\n';
    text += c;
  }
  if (text.ends_with(kPasteEnd)) text.resize(text.size() - kPasteEnd.size());
  return true;
}

// Bound to what a terminal sends before a paste: takes it into the line, line breaks and all.
unsigned char insert_paste(EditLine* editor, int) {
  std::wstring text;
  if (!read_paste(editor, text)) return CC_EOF;
  std::erase_if(text, [](wchar_t of) { return (of < L' ' && of != L'\n' && of != L'\t'); });
  if (!text.empty() && el_winsertstr(editor, text.c_str()) != 0) return CC_ERROR;
  return CC_REFRESH;
}

// For writing, with mode 0600; null where it cannot be. A link, as to /dev/null, stays what it is.
std::FILE* open_private_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  struct stat info;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) ::fchmod(fd, 0600);
  std::FILE* file = ::fdopen(fd, "w");
  if (file == nullptr) ::close(fd);
  return file;
}

}  // namespace

struct LineEditor::State {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string history_file;
  std::string prompt;
  LineSignals* signals = nullptr;  // while a line is read
  std::mbstate_t decoding = {};
  int num_early = -1;  // bytes that were typed before the terminal gave keys; -1: not known yet

  static State& of(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<State*>(data);
  }
  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }
  static int key_of(EditLine* editor, wchar_t* key) { return of(editor).read_key(key); }
  int read_key(wchar_t* key);
  int read_byte(char* byte);
  const wchar_t* edit_line(LineSignals& noted, int& count);
  void load_history();
  void configure_editor();
  void save_history() const;
  [[nodiscard]] std::string text_of_line() const;
};

// As libedit has it: 1, 0 at the end, -1 where there is none, here after an interrupt.
int LineEditor::State::read_byte(char* byte) {
  if (num_early < 0 && ::ioctl(STDIN_FILENO, FIONREAD, &num_early) != 0) num_early = 0;
  do {
    signals->handle_pending(editor);
    if (Interrupts::noted()) return -1;
  } while (!Interrupts::wait_for_input());
  const ssize_t count = ::read(STDIN_FILENO, byte, 1);
  if (count != 1) return static_cast<int>(count);
  // A Ctrl-D that came while the terminal still took lines is a zero byte now.
  if (num_early > 0 && *byte == '\0') *byte = static_cast<char>(kCtrlD);
  num_early = std::max(num_early - 1, 0);
  return 1;
}

int LineEditor::State::read_key(wchar_t* key) {
  while (true) {
    char byte = 0;
    if (const int got = read_byte(&byte); got != 1) return got;
    const size_t used = std::mbrtowc(key, &byte, 1, &decoding);
    if (used <= 1) return 1;
    if (used == static_cast<size_t>(-1)) decoding = {};  // no UTF-8: passed over
  }
}

void LineEditor::State::save_history() const {
  if (history_file.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(history_file).parent_path(), ignored);
  std::FILE* file = open_private_file(history_file);
  if (file == nullptr) return;
  HistEvent event;
  ::history(history, &event, H_SAVE_FP, file);
  std::fclose(file);
}

void LineEditor::State::load_history() {
  HistEvent event;
  ::history(history, &event, H_SETSIZE, kMostEntries);
  ::history(history, &event, H_SETUNIQUE, 1);
  if (!history_file.empty()) ::history(history, &event, H_LOAD, history_file.c_str());
}

// With what we bind to keys, and what ~/.editrc does.
void LineEditor::State::configure_editor() {
  el_set(editor, EL_CLIENTDATA, this);
  el_set(editor, EL_PROMPT, &State::prompt_of);
  el_set(editor, EL_EDITOR, "emacs");
  el_wset(editor, EL_GETCFN, &State::key_of);
  el_set(editor, EL_HIST, ::history, history);
  el_wset(editor, EL_ADDFN, L"strata-paste", L"Take a paste as it is", &insert_paste);
  el_set(editor, EL_BIND, "\\e[200~", "strata-paste", nullptr);
  el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(editor, nullptr);
}

LineEditor::LineEditor(std::string history_file) : state_(std::make_unique<State>()) {
  use_utf8();
  State& s = *state_;
  s.history_file = std::move(history_file);
  s.history = ::history_init();
  s.editor = ::el_init("strata", stdin, stderr, stderr);
  CHECK(s.history != nullptr && s.editor != nullptr);
  s.load_history();
  s.configure_editor();
}

LineEditor::~LineEditor() {
  ::el_end(state_->editor);
  ::history_end(state_->history);
}

bool LineEditor::is_usable() {
  const std::string terminal = env_terminal();
  return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1 && !terminal.empty() &&
         terminal != "dumb";
}

// As el_wgets() has it, with the terminal's signals handled and its pastes marked meanwhile.
const wchar_t* LineEditor::State::edit_line(LineSignals& noted, int& count) {
  num_early = -1;
  signals = &noted;
  to_terminal(kMarkPastes);
  el_set(editor, EL_PREP_TERM, 1);  // before the prompt: nothing is echoed twice
  const wchar_t* text = ::el_wgets(editor, &count);
  to_terminal(kLeavePastes);
  signals = nullptr;
  return text;
}

// What was typed of it so far.
std::string LineEditor::State::text_of_line() const {
  const LineInfoW* line = ::el_wline(editor);
  return to_utf8(line->buffer, static_cast<size_t>(line->lastchar - line->buffer));
}

LineEditor::Line LineEditor::read_line(const std::string& prompt) {
  State& s = *state_;
  s.prompt = prompt;
  LineSignals signals;
  int count = 0;
  const wchar_t* text = s.edit_line(signals, count);
  if (text != nullptr && count > 0)
    return {.outcome = Outcome::kLine, .text = to_utf8_without_line_break(text, count)};
  if (!Interrupts::noted()) return {};
  Interrupts::forget();
  return {.outcome = Outcome::kInterrupted, .text = s.text_of_line()};
}

bool LineEditor::has_more() {
  pollfd ready{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, kTogetherMs) == 1 && (ready.revents & POLLIN) != 0;
}

void LineEditor::remember(const std::string& entry) {
  HistEvent event;
  ::history(state_->history, &event, H_ENTER, entry.c_str());
  state_->save_history();
}

}  // namespace strata::apps
