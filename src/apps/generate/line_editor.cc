// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/line_editor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <clocale>
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

std::string narrow(const wchar_t* text, size_t count) {
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

// Bound to what a terminal sends before a paste: takes it into the line, line breaks and all.
unsigned char take_paste(EditLine* editor, int) {
  std::wstring text;
  wchar_t c = 0;
  while (!text.ends_with(kPasteEnd) && text.size() < kMostPasted) {
    if (el_wgetc(editor, &c) != 1) return CC_EOF;
    if (c == L'\r') c = L'\n';
    text += c;
  }
  if (text.ends_with(kPasteEnd)) text.resize(text.size() - kPasteEnd.size());
  std::erase_if(text, [](wchar_t of) { return (of < L' ' && of != L'\n' && of != L'\t'); });
  if (!text.empty() && el_winsertstr(editor, text.c_str()) != 0) return CC_ERROR;
  return CC_REFRESH;
}

}  // namespace

struct LineEditor::State {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string history_file;
  std::string prompt;

  static char* prompt_of(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return static_cast<State*>(data)->prompt.data();
  }
  void save() const;
};

// A link, as to /dev/null, stays what it is.
void LineEditor::State::save() const {
  if (history_file.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(history_file).parent_path(), ignored);
  const int fd = ::open(history_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  struct stat info;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) ::fchmod(fd, 0600);
  std::FILE* file = ::fdopen(fd, "w");
  if (file == nullptr) {
    ::close(fd);
    return;
  }
  HistEvent event;
  ::history(history, &event, H_SAVE_FP, file);
  std::fclose(file);
}

LineEditor::LineEditor(std::string history_file) : state_(std::make_unique<State>()) {
  use_utf8();
  State& s = *state_;
  s.history_file = std::move(history_file);
  s.history = ::history_init();
  s.editor = ::el_init("strata", stdin, stderr, stderr);
  CHECK(s.history != nullptr && s.editor != nullptr);
  HistEvent event;
  ::history(s.history, &event, H_SETSIZE, kMostEntries);
  ::history(s.history, &event, H_SETUNIQUE, 1);
  if (!s.history_file.empty()) ::history(s.history, &event, H_LOAD, s.history_file.c_str());
  el_set(s.editor, EL_CLIENTDATA, &s);
  el_set(s.editor, EL_PROMPT, &State::prompt_of);
  el_set(s.editor, EL_EDITOR, "emacs");
  el_set(s.editor, EL_SIGNAL, 1);  // the terminal is left as it was found
  el_set(s.editor, EL_HIST, ::history, s.history);
  el_wset(s.editor, EL_ADDFN, L"strata-paste", L"Take a paste as it is", &take_paste);
  el_set(s.editor, EL_BIND, "\\e[200~", "strata-paste", nullptr);
  el_set(s.editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(s.editor, nullptr);
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

LineEditor::Line LineEditor::read(const std::string& prompt) {
  State& s = *state_;
  s.prompt = prompt;
  Interrupts::forget();
  Interrupts::break_reads(true);
  to_terminal(kMarkPastes);
  int count = 0;
  const wchar_t* text = ::el_wgets(s.editor, &count);
  Interrupts::break_reads(false);
  to_terminal(kLeavePastes);
  if (text != nullptr && count > 0) {
    if (text[count - 1] == L'\n') --count;
    return {.outcome = Outcome::kLine, .text = narrow(text, static_cast<size_t>(count))};
  }
  if (!Interrupts::noted()) return {};
  const LineInfoW* line = ::el_wline(s.editor);
  Interrupts::forget();
  return {.outcome = Outcome::kInterrupted,
          .text = narrow(line->buffer, static_cast<size_t>(line->lastchar - line->buffer))};
}

bool LineEditor::has_more() {
  pollfd ready{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, kTogetherMs) == 1 && (ready.revents & POLLIN) != 0;
}

void LineEditor::remember(const std::string& entry) {
  HistEvent event;
  ::history(state_->history, &event, H_ENTER, entry.c_str());
  state_->save();
}

}  // namespace strata::apps
