from django import forms
from django.core.exceptions import ValidationError

from .models import Upload

LARGEST = 1_000_000


class UploadForm(forms.ModelForm):
    class Meta:
        model = Upload
        fields = ["customer", "file"]

    def clean_file(self):
        file = self.cleaned_data["file"]
        if file.size > LARGEST:
            raise ValidationError("A file may have 1 MB.")
        return file
